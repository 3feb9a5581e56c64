"""Fields of a config.json, read from a GGUF's metadata. Imports no torch."""

from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ..description import describe_gguf, unread_beside
from ..json_file import positive_int
from .architectures import ROPE_FACTORS, Architecture, architecture_of
from .file import GgufFile, read_gguf
from .keys import Keys
from .token_types import end_ids

# No known model has more, and rope tables take memory for each position.
_MAX_CONTEXT_LENGTH = 2**22
# Fields of generation_config.json, and their keys below general.sampling.
_SAMPLING = {
    **{name: name for name in ("top_p", "top_k", "min_p")},
    "temperature": "temp",
    "repetition_penalty": "penalty_repeat",
}


def read_config_fields(path: Path) -> dict[str, Any]:
    """Return the fields of a config.json for the file at this path. Raises ConfigError."""
    return config_fields(read_gguf(path))


def read_generation_fields(path: Path) -> dict[str, Any]:
    """Return the fields of a generation_config.json for the file at this path. Raises ConfigError."""
    found = {name: read_gguf(path).metadata.get(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    # Floats have 32 bits in the file: 0.95 is 0.949999988.
    return {
        name: float(f"{value:.7g}") if isinstance(value, float) else value
        for name, value in found.items()
        if value is not None
    }


def config_fields(file: GgufFile) -> dict[str, Any]:
    """Return the fields of a config.json for this file. Raises ConfigError."""
    try:
        fields = _config_fields(file, architecture_of(file), Keys(file))
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as exc:
        raise ConfigError(
            f"{file.path}: metadata is missing or of the wrong kind ({exc}); fetch the file again"
        ) from exc
    return {name: value for name, value in fields.items() if value is not None}


def _config_fields(file: GgufFile, architecture: Architecture, keys: Keys) -> dict[str, Any]:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ConfigError(f"{file.path} has no token_embd.weight; fetch the file again")
    if positive_int({"block_count": keys("block_count")}, "block_count") > len(file.tensors):
        raise ConfigError(f"{file.path}: block_count {keys('block_count')}, but {len(file.tensors)} tensors")
    context_length = positive_int({"context_length": keys("context_length")}, "context_length")
    if context_length > _MAX_CONTEXT_LENGTH:
        raise ConfigError(f"{file.path}: context_length {context_length}; at most {_MAX_CONTEXT_LENGTH} are served")
    eps = keys.number("attention.layer_norm_rms_epsilon") or keys.number("attention.layer_norm_epsilon")
    if eps is None:
        raise ConfigError(f"{file.path}: the epsilon of its norms is missing; fetch the file again")
    return {
        "architectures": [architecture.family],
        "vocab_size": embedding.shape[0],
        "hidden_size": keys("embedding_length"),
        "num_hidden_layers": keys("block_count"),
        "num_attention_heads": keys("attention.head_count"),
        "num_key_value_heads": keys("attention.head_count_kv"),
        "head_dim": _head_dim(keys),
        "intermediate_size": keys("feed_forward_length"),
        "max_position_embeddings": context_length,
        "rms_norm_eps": eps,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "dtype": {"F32": "float32", "F16": "float16"}.get(embedding.type.name, "bfloat16"),
        "eos_token_id": end_ids(file),
        "description": f"{describe_gguf(file)}{unread_beside(file)}",
        **_rope(keys),
        **architecture.fields(keys),
    }


def _rope(keys: Keys) -> dict[str, Any]:
    # llama.cpp's defaults: a file that leaves a key out was written for these, not for the families' defaults.
    head_dim = _head_dim(keys)
    fields = {
        "rope_theta": keys.number("rope.freq_base") or 10000.0,
        "partial_rotary_factor": (keys("rope.dimension_count") or head_dim) / head_dim,
    }
    scaling = _rope_scaling(keys)
    return {**fields, "rope_scaling": scaling} if scaling else fields


def _head_dim(keys: Keys) -> int:
    return int(keys("attention.key_length") or keys("embedding_length") // (keys("attention.head_count") or 1))


def _rope_scaling(keys: Keys) -> dict[str, Any]:
    divisors = [keys.vector(name) for name in ROPE_FACTORS if name in keys.file.tensors]
    if divisors:  # one list for all lengths (Llama 3), or a short and a long one (Phi 3)
        factor = keys.number("rope.scaling.attn_factor")
        return {
            "rope_type": "longrope",
            "short_factor": divisors[0],
            "long_factor": divisors[-1],
            "attention_factor": factor if factor else 1.0,
        }
    kind = keys("rope.scaling.type", "none")
    if kind == "none":
        return {}
    # OLMo 3's key is YaRN's whole temperature. Elsewhere llama.cpp multiplies YaRN's own by the key.
    name = keys.file.metadata["general.architecture"]
    is_whole = name == "olmo2"
    # DeepSeek's key is a tenth of both mscale and mscale_all_dim, in float32.
    tenth = keys.number("rope.scaling.yarn_log_multiplier") if name == "deepseek2" else None
    mscale = None if tenth is None else float(f"{10 * tenth:.6g}")
    return {
        "rope_type": kind,
        "factor": keys.number("rope.scaling.factor"),
        "original_max_position_embeddings": keys("rope.scaling.original_context_length"),
        "attention_factor": keys.number("rope.scaling.attn_factor") if is_whole else None,
        "truncate": name != "gpt-oss",  # no file has the field
        "mscale": mscale,
        "mscale_all_dim": mscale,
    }
