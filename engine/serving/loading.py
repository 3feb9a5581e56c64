"""Loading: from settings and a model folder to a ModelRunner: device, dtype, ranks, weights, memory for the cache."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...kernels import ops
from ..config import EngineConfig, ResolvedConfig
from ..config.cores import default_num_threads
from ..core.block_allocator import num_blocks_for
from ..core.block_manager import CacheSpec
from ..core.state_places import StateSpec
from ..errors import ConfigError
from ..execution.models.config import ModelConfig
from ..execution.models.device_memory import memory_of, refusing_out_of_memory
from ..execution.models.kv_cache import (
    KVCache,
    StatePool,
    cache_budget,
    kv_bytes_per_token,
    num_cache_blocks,
    state_bytes,
)
from ..execution.models.layer_states import LatentKV, paged_parts
from ..execution.models.registry import model_class, read_model_config
from ..execution.models.tensor_parallel import ALONE, TensorParallel
from ..execution.runner.model_runner import LoadedModel, ModelRunner
from ..extension import load_extra
from ..formats.weights import WeightSource, weight_source

_WEIGHT_BITS = {"int8": 8, "int4": 4}
# --quantization-activations: bits of inputs (`ops.pack_linear`); of MLPs' and experts', which lose less (RESULTS.md)
_INPUT_BITS = {"none": (16, 16), "auto": (16, ops.FAST_INPUTS), "int8": (8, 8)}
_TOO_LARGE = "the weights do not fit; try --quantization fp8, int8 or int4, or a smaller model"
_MAX_ROPE_BYTES = 2**32  # two million positions of head_dim 128 take 1 GiB
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# --kv-cache-dtype: its dtype, its device type, and the choice for another device.
_CACHE_DTYPES = {"int8": (torch.int8, "cpu", "fp8"), "fp8": (torch.float8_e4m3fn, "cuda", "int8")}


class ResolvedModel(NamedTuple):
    """Files of a model, and all that is decided before its weights are read."""

    config: ResolvedConfig
    folder: Path
    model: ModelConfig
    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype
    max_model_len: int


def load_runner(choices: ResolvedModel, *, draft: ModelConfig | None = None) -> ModelRunner:
    """Load the model's weights, and allocate its cache; this can take long. Raises ConfigError.

    `draft`: a model that gets a cache of equally many blocks beside this one's.
    """
    config = choices.config
    num_threads = config.num_threads or default_num_threads()
    torch.set_num_threads(max(1, num_threads // config.tensor_parallel_size))
    ops.be_exact(choices.device, bool(config.exact))
    if reason := ops.choose_attention(choices.device, config.attention_backend):
        raise ConfigError(f"attention_backend: {reason}; leave the setting out")
    model, ranks, make_cache, cached = _load_shares(choices)
    sizes = _cache_budget(choices, model, ranks, cached)
    cache, spec, states = _allocate_cache(choices, sizes, make_cache, cached, draft)
    loaded = LoadedModel(
        model_config=choices.model,
        device=choices.device,
        dtype=choices.dtype,
        max_model_len=choices.max_model_len,
        cache=spec,
        kv_bytes_per_token=kv_bytes_per_token(cached, choices.cache_dtype),
        states=states,
        op_by_op=model.plan.refusal(cache) if choices.device.type == "cpu" else None,
        inexact=_inexact_reason(choices),
    )
    return ModelRunner(model, cache, loaded, ranks=ranks, logprobs_mode=config.logprobs_mode)


def _inexact_reason(choices: ResolvedModel) -> str | None:
    """Return the reason why the schedule may change bits of an answer; None if it never does."""
    config, model = choices.config, choices.model
    if config.exact is False:
        return "--no-exact"
    family = model_class(model.architecture, impl=model.impl)
    if family.inexact or choices.device.type == "cpu" or not config.exact:
        return family.inexact or ops.inexact_reason(choices.device, choices.dtype, head_dim=model.head_dim)
    if model.quantization:
        return "nobody has compared a GPU's products with quantized files in different batches"
    if model.is_recurrent:
        return "nobody has compared a GPU's recurrent layers in different batches"
    if config.tensor_parallel_size > 1:
        return "nobody has compared the sums of several GPUs in different batches"
    return ops.inexact_reason(choices.device, choices.dtype, head_dim=model.head_dim)


def resolve(config: EngineConfig, folder: Path, *, for_streams: bool = False) -> ResolvedModel:
    """Read the shape of the model in a folder or GGUF file, and decide what is open. Raises ConfigError."""
    model = read_model_config(folder, rope_scaling=config.rope_scaling, impl=config.model_impl)
    check_quantization(config, model)
    check_parallel(config.tensor_parallel_size, model, num_slices=config.tensor_parallel_slices)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, model, device)
    cache_dtype = resolve_cache_dtype(config.kv_cache_dtype, dtype, device)
    max_model_len = resolve_max_model_len(config, model)
    facts = {"dtype": str(dtype).removeprefix("torch."), "max_model_len": max_model_len}
    resolved = ResolvedConfig.of(config, device=device.type, for_streams=for_streams, **facts)
    return ResolvedModel(resolved, folder, model, device, dtype, cache_dtype, max_model_len)


def _load_shares(choices: ResolvedModel) -> tuple[Any, Any, Callable[..., KVCache], ModelConfig]:
    """Load the model, with other ranks if there are several.

    Returns the model, the ranks or None, the maker of the cache, and a config with the KV heads that share its memory.
    """
    config, folder, model_config, device, dtype, _, max_model_len = choices
    parallel = _parallel_extra(config)
    ranks = parallel and parallel.start_ranks(
        parallel.Setup(config, folder, device, dtype, max_model_len, torch.get_num_threads())
    )
    model = load_model(
        config,
        folder,
        model_config,
        device=device,
        dtype=dtype,
        max_model_len=max_model_len,
        parallel=ALONE if ranks is None else ranks.parallel,
    )
    if ranks is None:
        return model, None, KVCache, model_config
    cached = parallel.cached_config(model_config, ranks.parallel, device)
    return parallel.ParallelModel(model, ranks), ranks, partial(parallel.ParallelCache, ranks=ranks), cached


def _cache_budget(choices: ResolvedModel, model: Any, ranks: Any, cached: ModelConfig) -> tuple[int, int]:
    """Return the bytes of a GPU's largest step, which is measured, and those for the cache. Raises ConfigError."""
    config, memory = choices.config, memory_of(choices.device)
    if memory is None:
        return 0, cache_budget(config, None, 0)
    from ..execution.runner.launching import measured_budget

    options = {"device": choices.device, "dtype": choices.dtype, "cache_dtype": choices.cache_dtype, "cached": cached}
    return measured_budget(config, model, memory, ranks=ranks, max_model_len=choices.max_model_len, **options)


def _allocate_cache(
    choices: ResolvedModel, sizes: tuple[int, int], make_cache: Any, cached: ModelConfig, draft: ModelConfig | None
) -> tuple[KVCache, CacheSpec, StateSpec | None]:
    """Allocate a cache of the configured size, or of the `sizes` of `_cache_budget`. Raises ConfigError."""
    config, device, (step_bytes, budget) = choices.config, choices.device, sizes
    token_bytes = max(1, kv_bytes_per_token(cached, choices.cache_dtype))  # 0 if no layer has attention
    useful = config.max_num_seqs * num_blocks_for(choices.max_model_len, config.block_size)  # at full length
    states = state_spec(config, choices.model, choices.dtype, token_bytes=token_bytes, budget=budget, useful=useful)
    slots = StatePool()
    if states is not None:
        slots = StatePool(states.num_slots, choices.dtype, states.max_drafts, states.num_host)
    num_blocks = num_cache_blocks(
        config,
        bytes_per_token=token_bytes + (kv_bytes_per_token(draft, choices.dtype) if draft else 0),
        useful=useful,
        budget=budget - (0 if states is None else states.num_slots * states.slot_bytes),
        step_bytes=step_bytes,
    )
    num_host_bytes = swap_bytes(config, cached) - (0 if states is None else states.num_host * states.slot_bytes)
    num_host_blocks = num_host_bytes // (config.block_size * token_bytes)
    cache = make_cache(
        choices.model,
        num_blocks=num_blocks,
        block_size=config.block_size,
        dtype=choices.cache_dtype,
        device=device,
        num_host_blocks=num_host_blocks,
        states=slots,
    )
    return cache, CacheSpec(num_blocks, config.block_size, num_host_blocks, cache.measure_swap()), states


def state_spec(
    config: ResolvedConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    *,
    token_bytes: int,
    budget: int,
    useful: int,
) -> StateSpec | None:
    """Return the numbers of state slots in a cache of `budget` bytes, of which `useful` blocks can be of use.

    None for a model without recurrent layers.
    """
    if not model.is_recurrent:
        return None
    from ..execution.models.state_slots import max_drafts, plan_state_slots  # here: most models have no states

    return plan_state_slots(
        config,
        slot_bytes=state_bytes(model, dtype, max_drafts=max_drafts(config)),
        block_bytes=config.block_size * token_bytes,
        budget=budget,
        useful=useful,
        swap_bytes=swap_bytes(config, model),
    )


def swap_bytes(config: EngineConfig, model: ModelConfig) -> int:
    """Return the bytes of host memory for swapped requests; none without layers whose blocks can be swapped."""
    return int(config.swap_space * 2**30) if paged_parts(model.layer_states) else 0


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


def build_model(
    config: EngineConfig,
    weights: WeightSource,
    model_config: ModelConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_model_len: int,
    parallel: TensorParallel = ALONE,
) -> Any:
    """Build a model of the weights that a source has, packed as the settings say. Raises ConfigError."""
    family = model_class(model_config.architecture, impl=model_config.impl)
    if config.enable_lora:
        family = load_extra("lora.adapted", needed_for="--enable-lora").adapted(family)
    with refusing_out_of_memory(_TOO_LARGE):
        return family(
            model_config,
            weights,
            device=device,
            max_model_len=max_model_len,
            dtype=dtype,
            weight_bits=_WEIGHT_BITS.get(config.quantization or "", 16),
            input_bits=_INPUT_BITS[config.quantization_activations],
            has_fp8_weights=config.quantization == "fp8",
            parallel=parallel,
        )


def resolve_device(name: str) -> torch.device:
    """Return the device for --device. Raises ConfigError if CUDA is requested and missing, or the GPU not supported."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no CUDA device; `splitfuse doctor` shows why, --device cpu works")
    if name == "cuda":
        from ...kernels.cuda.device_info import unsupported_gpu

        if reason := unsupported_gpu():
            raise ConfigError(f"{reason}; --device cpu works")
    return torch.device(name)


def resolve_dtype(name: str, model_config: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the dtype for --dtype; auto is the checkpoint's.

    A CPU has no kernels for float16: auto takes bfloat16 instead, and float16 is computed in float32, which holds all
    of its values and whose sums have one order.
    """
    is_auto = name == "auto"
    if is_auto:
        name = model_config.dtype
    if device.type == "cpu" and name == "float16":
        name = "bfloat16" if is_auto else "float32"
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} of config.json is not known; set --dtype to one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def resolve_cache_dtype(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype for --kv-cache-dtype. Raises ConfigError if the device has no kernels for it.

    fp8 holds keys and values at scale 1, vLLM's default: e4m3 is a float, so a scale would move its range (2^-9 to
    448), not its precision.
    """
    if name == "auto":
        return dtype
    cache_dtype, device_type, other = _CACHE_DTYPES[name]
    if device.type != device_type:
        raise ConfigError(
            f"--kv-cache-dtype {name} is built for --device {device_type} only so far; take {other}, or leave it out"
        )
    return cache_dtype


def check_quantization(config: EngineConfig, model_config: ModelConfig) -> None:
    """Raise ConfigError if quantized weights would be quantized again."""
    if config.quantization and model_config.quantization and config.load_format != "dummy":
        raise ConfigError(
            f"--quantization {config.quantization} is for unquantized weights, but these are quantized already "
            f"({model_config.quantization.name}); leave it out"
        )


def check_parallel(num_ranks: int, model_config: ModelConfig, *, num_slices: int | None = None) -> None:
    """Raise ConfigError for a model whose heads ranks cannot share, or whose layers do not all keep KV of one shape."""
    states = model_config.layer_states
    if (num_slices or num_ranks) == 1:
        return
    if model_config.is_recurrent or len({*states}) > 1 or isinstance(states[0], LatentKV):
        raise ConfigError(
            f"--tensor-parallel-size above 1 is not built for {model_config.architecture}, "
            "whose layers keep a latent or different states; leave it out"
        )
    heads = model_config.num_heads, model_config.num_kv_heads, model_config.head_dim
    TensorParallel(size=num_ranks).qkv_rows(*heads)


def resolve_max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    """Return the length for --max-model-len. Raises ConfigError if the model was made for fewer positions."""
    longest = model_config.max_len_limit
    if config.max_model_len is not None and config.max_model_len > longest:
        raise ConfigError(
            f"--max-model-len {config.max_model_len} is more than the {longest} positions the model was made for; "
            "--rope-scaling stretches them"
        )
    max_model_len = config.max_model_len or model_config.max_position_embeddings
    rope_bytes = 4 * max_model_len * sum({rope: rope.rotary_dim for rope in model_config.ropes}.values())
    if rope_bytes > _MAX_ROPE_BYTES:
        raise ConfigError(
            f"the tables of rope for {max_model_len} positions take {rope_bytes >> 30} GiB; give a smaller "
            f"--max-model-len, or fetch the model's files again"
        )
    return max_model_len
