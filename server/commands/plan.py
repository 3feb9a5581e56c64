"""`splitfuse plan`: reports what fits into memory, before anything is loaded."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...engine.config import EngineConfig
from ...engine.config.short_names import hub_name
from ...engine.errors import ConfigError
from ...engine.formats.checkpoint import local_model, model_folder
from .model_store.stored_model import is_cached
from .settings_sources import SIZE_KIND, byte_size

if TYPE_CHECKING:
    from ...engine.execution.models.memory_plan import MemoryPlan

DOES_NOT_FIT = 1
NEVER_RUN = "written and tested without cards: never run on two GPUs"


def memory_size(text: str) -> int:
    """Parse a size such as 24GB or 16GiB to bytes. Raises ConfigError."""
    try:
        return byte_size(text)
    except ValueError as exc:
        raise ConfigError(f"--memory {text!r} is not {SIZE_KIND}") from exc


def plan(config: EngineConfig, *, memory: str | None, num_ranks: int) -> int:
    """Print the plan. Returns 0 if a request of full length fits, else 1. Raises ConfigError."""
    # Only JSON files are fetched from the hub. A GGUF file there would be downloaded whole.
    if local_model(config.model) is None and ":" in hub_name(str(config.model)) and not is_cached(str(config.model)):
        raise ConfigError(f"{config.model} is not here, and a plan fetches no weights; download the file first")
    folder = model_folder(replace(config, load_format="dummy"), config.model)
    if num_ranks < 1:
        raise ConfigError("--tensor-parallel-size must be 1 or more")
    num_bytes = None if memory is None else memory_size(memory)
    from ...engine.serving.memory_plan import plan_memory  # imports torch, for which a refusal need not wait

    def planned(config: EngineConfig) -> "MemoryPlan":
        return plan_memory(config, folder, memory=num_bytes, num_ranks=num_ranks)

    found = planned(config)
    print("\n".join(f"  {name:<9} {text}" for name, text in _rows(config, found)))
    for line in () if found.fits else _ways_out(config, found, planned):
        print(f"  try       {line}")
    return 0 if found.fits else DOES_NOT_FIT


def _rows(config: EngineConfig, found: "MemoryPlan") -> Iterator[tuple[str, str]]:
    model, per_rank = found.model, " on each rank" if found.config.tensor_parallel_size > 1 else ""
    quantized = model.quantization.name if model.quantization else config.quantization
    description = f" ({model.description})" if model.description else ""
    yield "model", f"{config.model_name}, {model.architecture}{description}"
    yield "device", f"{found.config.device}, {found.config.dtype}" + (f", weights {quantized}" if quantized else "")
    if found.config.tensor_parallel_size > 1 and found.config.device == "cuda":
        yield "GPUs", f"{found.config.tensor_parallel_size}, one for each rank; {NEVER_RUN}"
    yield "weights", f"{size_text(found.weight_bytes)}{per_rank}"
    if found.step_bytes:
        yield "a step", f"{size_text(found.step_bytes)}{per_rank}, estimated; `serve` measures it"
    yield "a token", f"{size_text(found.token_bytes)} of KV cache{per_rank}"
    num_blocks = max(0, found.num_blocks)
    yield (
        "KV cache",
        f"{num_blocks} blocks = {found.num_tokens} tokens = {found.num_requests:.3g} requests of "
        f"{found.config.max_model_len}: {size_text(found.num_tokens * found.token_bytes)}{per_rank}",
    )
    if getattr(config, "prefix_cache_dir", None) is not None:
        num_bytes = getattr(config, "prefix_cache_disk_bytes")  # noqa: B009  the section is known at run time only
        yield "on disk", f"{num_bytes // max(1, found.token_bytes)} tokens of prefixes at most: {size_text(num_bytes)}"
    if found.states is not None:
        states, slot_bytes = found.states, found.states.slot_bytes
        on_host = f", and {size_text(states.num_host * slot_bytes)} of --swap-space" if states.num_host else ""
        yield "states", f"{states}: {size_text(states.num_slots * slot_bytes)}{on_host}"
    if not found.fits:
        yield "", f"not one request of {found.config.max_model_len} tokens fits"


def _ways_out(
    config: EngineConfig, found: "MemoryPlan", planned: Callable[[EngineConfig], "MemoryPlan"]
) -> Iterator[str]:
    """Yield changes that make a request of full length, or of some length, fit."""
    if found.num_tokens >= 2:
        yield f"--max-model-len {found.num_tokens}"
    is_quantized = config.quantization is not None or found.model.quantization is not None
    for bits in () if is_quantized else ("int8", "int4"):
        with contextlib.suppress(ConfigError):  # a model with experts refuses quantization
            changed = planned(replace(config, quantization=bits))
            if changed.fits:
                yield f"--quantization {bits}: weights {size_text(changed.weight_bytes)}"
    if config.kv_cache_dtype == "auto":
        name = "fp8" if found.config.device == "cuda" else "int8"
        changed = planned(replace(config, kv_cache_dtype=name))
        if changed.fits:
            yield f"--kv-cache-dtype {name}: a token {size_text(changed.token_bytes)}"
    if found.config.tensor_parallel_size == 1 and found.config.device == "cuda":
        yield "--tensor-parallel-size 2, where there are two cards"
    yield f"a machine with more memory, or a smaller model: the weights alone take {size_text(found.weight_bytes)}"


def size_text(num_bytes: int) -> str:
    """Format a size, like `1.25 GiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes} bytes"
