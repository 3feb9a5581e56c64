"""Loading: from a resolved model to a ModelRunner: ranks, weights, memory for the cache."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...kernels import ops
from ..config import EngineConfig
from ..config.host import available_memory, default_num_threads
from ..core.block_manager import CacheSpec
from ..execution.models.config import ModelConfig
from ..execution.models.device_memory import memory_of, refusing_out_of_memory
from ..execution.models.kv_cache import KVCache, StatePool
from ..execution.models.memory_plan import cpu_budget, divide_memory
from ..execution.models.registry import model_class
from ..execution.models.resolved_model import ResolvedModel
from ..execution.models.tensor_parallel import SINGLE_RANK, TensorParallel
from ..execution.runner.model_runner import LoadedModel, ModelRunner
from ..extension import load_extra, used
from ..formats.weights import WeightSource

_WEIGHT_BITS = {"int8": 8, "int4": 4}
# --quantization-activations: bits of inputs (`ops.pack_linear`); of MLPs' and experts', which lose less (RESULTS.md)
_INPUT_BITS = {"none": (16, 16), "auto": (16, ops.FAST_INPUTS), "int8": (8, 8)}
_TOO_LARGE = "the weights do not fit; try --quantization fp8, int8 or int4, or a smaller model"


def load_runner(resolved: ResolvedModel, *, draft: ModelConfig | None = None) -> ModelRunner:
    """Load the model's weights, divide the memory, and allocate the cache; this can take long. Raises ConfigError.

    `draft`: a model that gets a cache of equally many blocks beside this one's.
    """
    config, device = resolved.config, resolved.device
    num_threads = config.num_threads or default_num_threads()
    torch.set_num_threads(max(1, num_threads // config.tensor_parallel_size))
    model, ranks, make_cache, cached = _load_shares(resolved)
    step_bytes = 0
    if (memory := memory_of(device)) is not None:
        from ..execution.runner.launching import measured_budget

        step_bytes, budget = measured_budget(model, memory, resolved, cached=cached, ranks=ranks)
    else:
        budget = cpu_budget(config, free=available_memory())
    plan = divide_memory(
        config, cached, resolved.dtype, resolved.cache_dtype, budget=budget, step_bytes=step_bytes, draft=draft
    )
    plan.check()
    pool = StatePool()
    if (slots := plan.states) is not None:
        pool = StatePool(slots.num_slots, resolved.dtype, slots.max_drafts, slots.num_host)
    cache = make_cache(
        resolved.model,
        num_blocks=plan.num_blocks,
        block_size=config.block_size,
        dtype=resolved.cache_dtype,
        device=device,
        num_host_blocks=plan.num_host_blocks,
        states=pool,
    )
    loaded = LoadedModel(
        resolved=resolved,
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
    parallel = _parallel_extra(resolved.config)
    ranks = parallel and parallel.start_ranks(parallel.Setup(resolved.config, resolved.folder, torch.get_num_threads()))
    model = load_model(resolved, parallel=SINGLE_RANK if ranks is None else ranks.parallel)
    if ranks is None:
        return model, None, KVCache, resolved.model
    cached = parallel.cached_config(resolved.model, ranks.parallel, resolved.device)
    return parallel.ParallelModel(model, ranks), ranks, partial(parallel.ParallelCache, ranks=ranks), cached


def _parallel_extra(config: EngineConfig) -> Any:
    """Return the module that starts ranks; None if one process has the whole model. Raises ConfigError."""
    if (config.tensor_parallel_slices or config.tensor_parallel_size) == 1:
        return None
    return load_extra("parallel.parallel_model", needed_for="--tensor-parallel-size")


def load_model(resolved: ResolvedModel, *, parallel: TensorParallel = SINGLE_RANK) -> Any:
    """Load a model, or a rank's share of it, with its weights on the device. Raises ConfigError."""
    # Beside the reading of weights: the first start on a machine builds the CPU library. A daemon, because an ending
    # process must not wait for the build.
    preparing = threading.Thread(target=ops.prepare, args=(resolved.device,), name="splitfuse-prepare", daemon=True)
    preparing.start()
    with resolved.weights(load_format=resolved.config.load_format) as weights:
        model = build_model(resolved, weights, parallel=parallel)
    preparing.join()
    return model


def build_model(resolved: ResolvedModel, weights: WeightSource, *, parallel: TensorParallel = SINGLE_RANK) -> Any:
    """Build a model of the weights that a source has, packed as the settings say. Raises ConfigError."""
    ops.be_exact(resolved.device, bool(resolved.config.exact))  # decides how matrices are packed
    config, model = resolved.config, resolved.model
    family = model_class(model.architecture, impl=model.impl)
    for extension in used(config):
        if extension.decoder_wrapper is not None:
            family = extension.load(extension.decoder_wrapper)(family)
    with refusing_out_of_memory(_TOO_LARGE):
        return family(
            model,
            weights,
            device=resolved.device,
            max_model_len=config.max_model_len,
            dtype=resolved.dtype,
            weight_bits=_WEIGHT_BITS.get(config.quantization or "", 16),
            input_bits=_INPUT_BITS[config.quantization_activations],
            has_fp8_weights=config.quantization == "fp8",
            parallel=parallel,
        )
