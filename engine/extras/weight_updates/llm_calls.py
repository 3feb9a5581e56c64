"""Calls of LLM that change its weights and give back its memory: update_weights, sleep, wake_up."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .live_model import LiveModel

if TYPE_CHECKING:
    from torch import Tensor

    from ...serving.llm import LLM


def update_weights(llm: "LLM", weights: "str | Path | Iterable[tuple[str, Tensor]]") -> int:
    """Change to all weights of a folder or of tensors by checkpoint name, and return their version.

    Streams go on: their tokens stay, and further tokens follow from the new weights alone. Raises ConfigError; then
    nothing has changed.
    """
    live = llm.state(LiveModel)
    new = live.load(Path(weights)) if isinstance(weights, (str, Path)) else live.build(weights)
    with llm.between_steps():
        version = live.take(new, llm.core)
        _note(llm)
    return version


def sleep(llm: "LLM", level: int = 1) -> None:
    """Give back the memory of the cache, at level 2 that of the weights too. Raises InvalidRequestError."""
    with llm.between_steps():
        llm.state(LiveModel).sleep(level, llm.core)
        _note(llm)


def wake_up(llm: "LLM", tags: Sequence[str] | None = None) -> None:
    """End the sleep, or with vLLM's tag "weights" alone that of the weights. Raises ConfigError.

    Weights that were given back are read again.
    """
    live = llm.state(LiveModel)
    weights = None if tags and "weights" not in tags else live.restored()
    with llm.between_steps():
        live.wake_up(weights, is_whole=not tags or "kv_cache" in tags)
        _note(llm)


def _note(llm: "LLM") -> None:
    llm.paused = "sleeping" if llm.state(LiveModel).sleep_level else None
