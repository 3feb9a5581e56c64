"""Launching: the launcher of a runner's steps, and the memory that steps take of a GPU, before the first request."""

import logging
from contextlib import nullcontext
from typing import Any

import torch

from ...config import ResolvedConfig
from ...core.policies import BATCHING_POLICIES
from ...device import stream_of
from ..models.config import ModelConfig
from ..models.device_memory import DeviceMemory, refusing_out_of_memory
from ..models.kv_cache import KVCache, StatePool
from ..models.memory_plan import gpu_budget
from ..models.resolved_model import ResolvedModel
from .async_runner import AsyncRunner
from .cuda_graphs import CudaGraphCapturer, GraphCapturer, graph_bytes, graph_sizes, mixed_graph_sizes
from .model_runner import ModelRunner
from .rehearsal import compile_kernels

_log = logging.getLogger("splitfuse.engine")

# Models whose graphs are right where their work is repeated on a CPU, and have not been seen on a card. families.py of
# tests/gpu captures them; once a card has shown equal tokens, their row goes.
UNSEEN = {"recurrent layers", "adapters"}


def load_launcher(runner: ModelRunner, config: ResolvedConfig) -> AsyncRunner:
    """Create the launcher of a runner's steps. On a GPU its kernels are compiled and its graphs captured now."""
    if runner.ranks is None:
        return _load_launcher(runner, config)
    with runner.ranks.together("load_launcher"):
        launcher = _load_launcher(runner, config)
    runner.ranks.answers()
    return launcher


def _load_launcher(runner: ModelRunner, config: ResolvedConfig) -> AsyncRunner:
    loaded = runner.loaded
    launcher = runner.new_launcher(**_step_limits(config))
    capturer = _capturer(loaded.device)
    if capturer is None:
        return launcher
    if (reason := graphs_refusal(runner.model, config)) is not None:
        _log.info("no CUDA graphs: %s", reason)
    else:
        launcher.use_graphs(
            capturer,
            sizes=graph_sizes(config.max_num_seqs),
            hidden_size=loaded.model_config.hidden_size,
            dtype=loaded.dtype,
        )
    launcher.compile_kernels()
    launcher.capture_graphs()
    return launcher


def graphs_refusal(model: Any, config: ResolvedConfig) -> str | None:
    """Return the reason why a model's steps get no CUDA graphs; None if they do. `model` is a Decoder."""
    if config.enforce_eager:
        return "--enforce-eager"
    fields = {"recurrent layers"} if model.config.is_recurrent else set()
    fields |= {"adapters"} if model.padding(1) else set()
    unseen = sorted(fields & UNSEEN)
    return f"no card has run those of {' or '.join(unseen)} yet" if unseen else None


def _capturer(device: torch.device) -> GraphCapturer | None:
    return CudaGraphCapturer(device) if device.type == "cuda" else None


def measured_budget(
    model: Any, memory: DeviceMemory, resolved: ResolvedModel, *, cached: ModelConfig, ranks: Any = None
) -> tuple[int, int]:
    """Measure the bytes of a GPU's largest step, and return the bytes for its cache, too. Raises ConfigError.

    `cached` has the KV heads of this process. With `ranks` the GPU with the least memory decides the cache's size.
    """
    with nullcontext() if ranks is None else ranks.together("measure"):
        step_bytes = _measure_step_bytes(model, memory, resolved, cached=cached)
    free, total = memory.free_and_total()  # memory that is in use now stays in use
    budget = gpu_budget(resolved.config, total=total, used=total - free + step_bytes)
    return step_bytes, budget if ranks is None else min(budget, *ranks.answers())


def _step_limits(config: ResolvedConfig) -> dict[str, Any]:
    """Return the largest numbers of a step, as AsyncRunner takes them."""
    whole_prompts = BATCHING_POLICIES[config.batching_policy].whole_prompts
    num_tokens = max(config.max_num_batched_tokens, config.max_model_len if whole_prompts else 0)
    return {"max_num_tokens": num_tokens, "max_num_seqs": config.max_num_seqs, "max_model_len": config.max_model_len}


def _measure_step_bytes(model: Any, memory: DeviceMemory, resolved: ResolvedModel, *, cached: ModelConfig) -> int:
    """Return the bytes of the largest step, which runs over padding with a cache of one block. `model` is a Decoder.

    Raises ConfigError if the step does not fit.
    """
    config, device, dtype = resolved.config, resolved.device, resolved.dtype
    sizes = _step_limits(config)

    def largest_step() -> None:
        pool, block_size = StatePool(1, dtype), config.block_size
        cache = KVCache(
            cached, num_blocks=1, block_size=block_size, dtype=resolved.cache_dtype, device=device, states=pool
        )
        planner = cache.decode_planner(model.config.sliding_windows, dtype)
        AsyncRunner(model, cache, stream_of(device), device=device, planner=planner, **sizes).rehearse_largest()

    way_out = (
        f"a step of {sizes['max_num_tokens']} tokens and {sizes['max_num_seqs']} sequences does not fit beside the "
        "weights; lower --max-num-batched-tokens, --max-num-seqs or --max-model-len"
    )
    with refusing_out_of_memory(way_out):
        compile_kernels(largest_step, device)
        num_bytes = memory.peak(largest_step)
    if config.enforce_eager:
        return num_bytes
    num_graphs = len(graph_sizes(sizes["max_num_seqs"])) + len(mixed_graph_sizes(sizes["max_num_tokens"]))
    return 2 * num_bytes + graph_bytes(num_graphs)  # graphs have a memory pool of the largest graph's size
