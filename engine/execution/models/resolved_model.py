"""ResolvedModel: files of a model, and all that is decided before its weights are read."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import torch

from ....kernels import ops
from ...config import EngineConfig, ResolvedConfig
from ...errors import ConfigError
from ...formats.weights import WeightSource, weight_source
from .config import ModelConfig
from .layer_states import LatentKV
from .registry import model_class, read_model_config
from .tensor_parallel import TensorParallel

_MAX_ROPE_BYTES = 2**32  # two million positions of head_dim 128 take 1 GiB
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# --kv-cache-dtype: its dtype, its device type, and the choice for another device.
_CACHE_DTYPES = {"int8": (torch.int8, "cpu", "fp8"), "fp8": (torch.float8_e4m3fn, "cuda", "int8")}


class ResolvedModel(NamedTuple):
    """Files of a model, its shape, and its settings in torch's terms."""

    config: ResolvedConfig
    folder: Path
    model: ModelConfig
    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype

    def weights(self, *, load_format: str) -> AbstractContextManager[WeightSource]:
        """Open the source of the weights, for a block. Raises ConfigError."""
        return weight_source(
            self.folder,
            load_format=load_format,
            dtype=self.dtype,
            seed=self.config.seed,
            device=self.device,
            quantization=self.model.quantization,
            is_text_part=bool(self.model.hf_config.get("is_text_part")),
        )

    def inexact_reason(self) -> str | None:
        """Return the reason why the schedule may change bits of an answer; None if it never does.

        Call it once the kernels have been told what has to be exact (`ops.be_exact`).
        """
        config, model = self.config, self.model
        if config.exact is False:
            return "--no-exact"
        family = model_class(model.architecture, impl=model.impl)
        if family.inexact or self.device.type == "cpu" or not config.exact:
            return family.inexact or ops.inexact_reason(self.device, self.dtype, head_dim=model.head_dim)
        if model.quantization:
            return "nobody has compared a GPU's products with quantized files in different batches"
        if model.is_recurrent:
            return "nobody has compared a GPU's recurrent layers in different batches"
        if config.tensor_parallel_size > 1:
            return "nobody has compared the sums of several GPUs in different batches"
        return ops.inexact_reason(self.device, self.dtype, head_dim=model.head_dim)


def resolve(
    config: EngineConfig, folder: Path, *, for_streams: bool = False, needs_device: bool = True
) -> ResolvedModel:
    """Read the shape of the model in a folder or GGUF file, and decide what is open.

    Without `needs_device` a GPU may be missing: it is another machine's. Raises ConfigError.
    """
    model = read_model_config(folder, rope_scaling=config.rope_scaling, impl=config.model_impl)
    _check_quantization(config, model)
    _check_parallel(config.tensor_parallel_size, model, num_slices=config.tensor_parallel_slices)
    device = resolve_device(config.device) if needs_device or config.device != "cuda" else torch.device("cuda")
    dtype = resolve_dtype(config.dtype, model, device)
    cache_dtype = resolve_cache_dtype(config.kv_cache_dtype, dtype, device)
    facts = {"dtype": str(dtype).removeprefix("torch."), "max_model_len": _max_model_len(config, model)}
    resolved = ResolvedConfig.of(config, device=device.type, for_streams=for_streams, **facts)
    return ResolvedModel(resolved, folder, model, device, dtype, cache_dtype)


def resolve_device(name: str) -> torch.device:
    """Return the device for --device. Raises ConfigError if CUDA is requested and missing, or the GPU not supported."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no CUDA device; `splitfuse doctor` shows why, --device cpu works")
    if name == "cuda":
        from ....kernels.cuda.device_info import unsupported_gpu

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


def _check_quantization(config: EngineConfig, model_config: ModelConfig) -> None:
    """Raise ConfigError if quantized weights would be quantized again."""
    if config.quantization and model_config.quantization and config.load_format != "dummy":
        raise ConfigError(
            f"--quantization {config.quantization} is for unquantized weights, but these are quantized already "
            f"({model_config.quantization.name}); leave it out"
        )


def _check_parallel(num_ranks: int, model_config: ModelConfig, *, num_slices: int | None = None) -> None:
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


def _max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
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
