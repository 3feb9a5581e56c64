"""Calls of LLM that change its weights and give back its memory: update_weights, sleep, wake_up."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .control import EngineControl

if TYPE_CHECKING:
    from torch import Tensor

    from ...serving.llm import LLM


def update_weights(llm: "LLM", weights: "str | Path | Iterable[tuple[str, Tensor]]") -> int:
    """Change to all weights of a folder or of tensors by checkpoint name, and return their version.

    Streams go on: their tokens stay, and further tokens follow from the new weights alone. Raises ConfigError; then
    nothing has changed.
    """
    source = Path(weights) if isinstance(weights, (str, Path)) else weights
    return llm.run(llm.engine.state(EngineControl).update(source))


def sleep(llm: "LLM", level: int = 1) -> None:
    """Give back the memory of the cache, at level 2 that of the weights too. Raises InvalidRequestError."""
    llm.run(llm.engine.state(EngineControl).sleep(level))


def wake_up(llm: "LLM", tags: Sequence[str] | None = None) -> None:
    """End the sleep, or with vLLM's tag "weights" alone that of the weights. Raises ConfigError.

    Weights that were given back are read again.
    """
    llm.run(llm.engine.state(EngineControl).wake_up(tags))
