"""Loading: from a resolved model to a ModelRunner: ranks, weights, memory for the cache."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...kernels import ops
from ..config import EngineConfig
from ..config.cores import default_num_threads
from ..config.host_memory import available_memory
from ..core.block_manager import CacheSpec
from ..execution.models.config import ModelConfig
from ..execution.models.device_memory import memory_of
from ..execution.models.kv_cache import KVCache, StatePool
from ..execution.models.memory_plan import cpu_budget, divide_memory
from ..execution.models.model_builder import build_model
from ..execution.models.tensor_parallel import ALONE, TensorParallel
from ..execution.runner.model_runner import LoadedModel, ModelRunner
from ..extension import load_extra
from ..formats.weights import weight_source
from .resolved_model import ResolvedModel


def load_runner(resolved: ResolvedModel, *, draft: ModelConfig | None = None) -> ModelRunner:
    """Load the model's weights, divide the memory, and allocate the cache; this can take long. Raises ConfigError.

    `draft`: a model that gets a cache of equally many blocks beside this one's.
    """
    config, device, dtype, cache_dtype = resolved.config, resolved.device, resolved.dtype, resolved.cache_dtype
    num_threads = config.num_threads or default_num_threads()
    torch.set_num_threads(max(1, num_threads // config.tensor_parallel_size))
    ops.be_exact(device, bool(config.exact))
    model, ranks, make_cache, cached = _load_shares(resolved)
    step_bytes = 0
    if (memory := memory_of(device)) is not None:
        from ..execution.runner.launching import measured_budget

        options = {"device": device, "dtype": dtype, "cache_dtype": cache_dtype, "cached": cached}
        step_bytes, budget = measured_budget(config, model, memory, ranks=ranks, **options)
    else:
        budget = cpu_budget(config, free=available_memory())
    plan = divide_memory(
        config, cached, budget=budget, step_bytes=step_bytes, dtype=dtype, cache_dtype=cache_dtype, draft=draft
    )
    plan.check()
    states = plan.states
    cache = make_cache(
        resolved.model,
        num_blocks=plan.num_blocks,
        block_size=config.block_size,
        dtype=cache_dtype,
        device=device,
        num_host_blocks=plan.num_host_blocks,
        states=StatePool()
        if states is None
        else StatePool(states.num_slots, dtype, states.max_drafts, states.num_host),
    )
    loaded = LoadedModel(
        model_config=resolved.model,
        device=device,
        dtype=dtype,
        max_model_len=config.max_model_len,
        cache=CacheSpec(plan.num_blocks, config.block_size, plan.num_host_blocks, cache.measure_swap()),
        memory=plan,
        op_by_op=model.plan.refusal(cache) if device.type == "cpu" else None,
        inexact=resolved.inexact_reason(),
    )
    return ModelRunner(model, cache, loaded, ranks=ranks)


def _load_shares(resolved: ResolvedModel) -> tuple[Any, Any, Callable[..., KVCache], ModelConfig]:
    """Load the model, with other ranks if there are several.

    Returns the model, the ranks or None, the maker of the cache, and a config with the KV heads that share its memory.
    """
    config, folder, model_config, device, dtype, _ = resolved
    parallel = _parallel_extra(config)
    ranks = parallel and parallel.start_ranks(
        parallel.Setup(config, folder, device, dtype, config.max_model_len, torch.get_num_threads())
    )
    model = load_model(
        config,
        folder,
        model_config,
        device=device,
        dtype=dtype,
        max_model_len=config.max_model_len,
        parallel=ALONE if ranks is None else ranks.parallel,
    )
    if ranks is None:
        return model, None, KVCache, model_config
    cached = parallel.cached_config(model_config, ranks.parallel, device)
    return parallel.ParallelModel(model, ranks), ranks, partial(parallel.ParallelCache, ranks=ranks), cached


def _parallel_extra(config: EngineConfig) -> Any:
    """Return the module that starts ranks; None if one process has the whole model. Raises ConfigError."""
    if (config.tensor_parallel_slices or config.tensor_parallel_size) == 1:
        return None
    return load_extra("parallel.parallel_model", needed_for="--tensor-parallel-size")


def load_model(
    config: EngineConfig,
    folder: Path,
    model_config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_model_len: int,
    parallel: TensorParallel = ALONE,
) -> Any:
    """Load a model, or a rank's share of it, with its weights on the device. Raises ConfigError."""
    # Beside the reading of weights: the first start on a machine builds the CPU library. A daemon, because an ending
    # process must not wait for the build.
    preparing = threading.Thread(target=ops.prepare, args=(device,), name="splitfuse-prepare", daemon=True)
    preparing.start()
    source = weight_source(
        folder,
        load_format=config.load_format,
        dtype=dtype,
        seed=config.seed,
        device=device,
        quantization=model_config.quantization,
    )
    with source as weights:
        model = build_model(
            config, weights, model_config, device=device, dtype=dtype, max_model_len=max_model_len, parallel=parallel
        )
    preparing.join()
    return model
