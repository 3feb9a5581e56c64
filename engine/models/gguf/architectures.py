"""Which family serves a GGUF architecture: its metadata as a config.json, its tensors' names. Imports no torch.

What llama.cpp's converter did to the weights (convert_hf_to_gguf.py of https://github.com/ggml-org/llama.cpp) is undone
where they are read: a Place says what it was.
"""

import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from ...errors import ConfigError
from ..checkpoint import JOIN, positive_int
from .file import GgufFile, Strings, TensorInfo

CONTROL = 3  # a token's type: no text of its own
# More is no model's, and a table of angles for every position is made.
_MAX_CONTEXT_LENGTH = 2**22
_MAX_EXPERTS = 4096
# Tokens that end an answer wherever they are control tokens: instruct models have several, and a file names one.
_ENDS = frozenset({"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>"})


class Place(NamedTuple):
    """Where the tensor of a checkpoint name is, and what the converter did to it."""

    info: TensorInfo
    expert: int | None = None  # one of the matrices that the tensor holds
    num_rotated_heads: int = 0  # the two halves of each head's rows were interleaved
    adds_one: bool = False
    is_transposed: bool = False  # against the checkpoint's


_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk": "model.layers",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA2_NAMES = {**_NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"}
_GPT2_NAMES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "blk": "transformer.h",
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GPT2_TRANSPOSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
# Read for the config.
_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


class _Keys:
    """A file's metadata under its architecture's prefix."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._prefix = str(file.metadata.get("general.architecture"))

    def __call__(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self._prefix}.{key}", default)

    def number(self, key: str) -> int | float | None:
        """Raises ConfigError where it is none."""
        value = self(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{self._prefix}.{key} must be a number")
        return value


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One value of general.architecture."""

    family: str  # as in config.json's `architectures`
    names: Mapping[str, str] = field(default_factory=dict)  # of tensors, where they are others than in _NAMES
    interleaves_heads: bool = False  # the rows of q and k
    norms_add_one: bool = False
    transposed: tuple[str, ...] = ()
    fields: Callable[[_Keys], dict[str, Any]] = lambda keys: {}  # of config.json, beside those of all


def _gpt2(keys: _Keys) -> dict[str, Any]:
    return {
        "n_embd": keys("embedding_length"),
        "n_layer": keys("block_count"),
        "n_head": keys("attention.head_count"),
        "n_positions": keys("context_length"),
        "n_inner": keys("feed_forward_length"),
        "layer_norm_epsilon": keys.number("attention.layer_norm_epsilon"),
    }


def _gemma2(keys: _Keys) -> dict[str, Any]:
    # llama.cpp knows by the number of layers which of its models divide by the hidden size's share of a head.
    is_27b = keys("block_count") in (46, 62)
    head_dim = keys("embedding_length") // keys("attention.head_count") if is_27b else keys("attention.key_length")
    scale = keys.number("attention.scale")
    return {
        "query_pre_attn_scalar": scale**-2 if scale else head_dim,
        "sliding_window": keys("attention.sliding_window"),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping"),
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
    }


def _gemma3(keys: _Keys) -> dict[str, Any]:
    pattern = keys("attention.sliding_window_pattern")
    return {
        **_gemma2(keys),
        "rope_theta": keys.number("rope.freq_base") or 1e6,
        "sliding_window_pattern": pattern if isinstance(pattern, int) else None,
        "rope_local_base_freq": keys.number("rope.freq_base_swa"),
    }


def _phi3(keys: _Keys) -> dict[str, Any]:
    return {
        "sliding_window": keys("attention.sliding_window"),
        "original_max_position_embeddings": keys("rope.scaling.original_context_length"),
    }


def _qwen3_moe(keys: _Keys) -> dict[str, Any]:
    return {
        "num_experts": keys("expert_count"),
        "num_experts_per_tok": keys("expert_used_count"),
        "moe_intermediate_size": keys("expert_feed_forward_length"),
        "norm_topk_prob": True,  # of all of these models
        "mlp_only_layers": [
            layer for layer in range(keys("block_count")) if f"blk.{layer}.ffn_gate_inp.weight" not in keys.file.tensors
        ],
        "intermediate_size": keys("feed_forward_length") or keys("expert_feed_forward_length"),
    }


def _granite(keys: _Keys) -> dict[str, Any]:
    return {
        "embedding_multiplier": keys.number("embedding_scale"),
        "attention_multiplier": keys.number("attention.scale"),
        "residual_multiplier": keys.number("residual_scale"),
        "logits_scaling": keys.number("logit_scale"),
    }


ARCHITECTURES = {
    "gemma": Architecture(family="GemmaForCausalLM", norms_add_one=True),
    "gemma2": Architecture(family="Gemma2ForCausalLM", names=_GEMMA2_NAMES, norms_add_one=True, fields=_gemma2),
    "gemma3": Architecture(family="Gemma3ForCausalLM", names=_GEMMA2_NAMES, norms_add_one=True, fields=_gemma3),
    "gpt2": Architecture(family="GPT2LMHeadModel", names=_GPT2_NAMES, transposed=_GPT2_TRANSPOSED, fields=_gpt2),
    "granite": Architecture(family="GraniteForCausalLM", interleaves_heads=True, fields=_granite),
    "llama": Architecture(family="LlamaForCausalLM", interleaves_heads=True),
    "olmo2": Architecture(family="Olmo2ForCausalLM", names=_NORMS_AFTER),
    "phi3": Architecture(family="Phi3ForCausalLM", names={"ffn_up": "mlp.gate_up_proj"}, fields=_phi3),
    "qwen2": Architecture(family="Qwen2ForCausalLM"),
    "qwen3": Architecture(family="Qwen3ForCausalLM"),
    "qwen3moe": Architecture(family="Qwen3MoeForCausalLM", fields=_qwen3_moe),
}


def architecture_of(file: GgufFile) -> Architecture:
    """Raises ConfigError that lists what is known."""
    name = file.metadata.get("general.architecture")
    if "split.count" in file.metadata and file.metadata["split.count"] != 1:
        raise ConfigError(f"{file.path} is one part of a split GGUF; {JOIN}")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ConfigError(f"{file.path}: GGUF architecture {name!r} is not known; known: {known}")
    if name == "llama" and file.metadata.get("llama.expert_count"):
        raise ConfigError(f"{file.path}: experts in a GGUF of architecture 'llama' are not read; take its safetensors")
    return ARCHITECTURES[name]


def config_fields(file: GgufFile) -> dict[str, Any]:
    """A config.json for this file. Raises ConfigError."""
    try:
        fields = _config_fields(file, architecture_of(file), _Keys(file))
    except (TypeError, ValueError, ArithmeticError, AttributeError) as exc:
        raise ConfigError(
            f"{file.path}: metadata is missing or of the wrong kind ({exc}); fetch the file again"
        ) from exc
    return {name: value for name, value in fields.items() if value is not None}


def _config_fields(file: GgufFile, architecture: Architecture, keys: _Keys) -> dict[str, Any]:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ConfigError(f"{file.path} has no token_embd.weight; fetch the file again")
    if positive_int({"block_count": keys("block_count")}, "block_count") > len(file.tensors):
        raise ConfigError(f"{file.path}: block_count {keys('block_count')}, but {len(file.tensors)} tensors")
    context_length = positive_int({"context_length": keys("context_length")}, "context_length")
    if context_length > _MAX_CONTEXT_LENGTH:
        raise ConfigError(f"{file.path}: context_length {context_length}; at most {_MAX_CONTEXT_LENGTH} are served")
    return {
        "architectures": [architecture.family],
        "vocab_size": embedding.shape[0],
        "hidden_size": keys("embedding_length"),
        "num_hidden_layers": keys("block_count"),
        "num_attention_heads": keys("attention.head_count"),
        "num_key_value_heads": keys("attention.head_count_kv"),
        "head_dim": keys("attention.key_length"),
        "intermediate_size": keys("feed_forward_length"),
        "max_position_embeddings": context_length,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "dtype": {"F32": "float32", "F16": "float16"}.get(embedding.type.name, "bfloat16"),
        "eos_token_id": _end_ids(file),
        "description": _description(file),
        **_rope(keys),
        **architecture.fields(keys),
    }


def _rope(keys: _Keys) -> dict[str, Any]:
    theta, rotary_dim = keys.number("rope.freq_base"), keys("rope.dimension_count")
    fields = {"rope_theta": theta} if theta else {}
    head_dim = keys("attention.key_length") or keys("embedding_length") // keys("attention.head_count")
    if rotary_dim and rotary_dim != head_dim:
        fields["partial_rotary_factor"] = rotary_dim / head_dim
    scaling = _rope_scaling(keys)
    return {**fields, "rope_scaling": scaling} if scaling else fields


def _rope_scaling(keys: _Keys) -> dict[str, Any]:
    divisors = [_vector(keys.file, name) for name in _ROPE_FACTORS if name in keys.file.tensors]
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
    return {
        "rope_type": kind,
        "factor": keys.number("rope.scaling.factor"),
        "original_max_position_embeddings": keys("rope.scaling.original_context_length"),
    }


def _vector(file: GgufFile, name: str) -> list[float]:
    info = file.tensors[name]
    if info.type.name != "F32" or len(info.shape) != 1:
        raise ConfigError(f"{file.path}: {name} is not a vector of float32; fetch the file again")
    values = array("f")
    with file.path.open("rb") as data:
        data.seek(info.offset)
        values.frombytes(data.read(info.num_bytes))
    return values.tolist()


def _end_ids(file: GgufFile) -> list[int]:
    """The tokens that end an answer."""
    tokens, types = file.metadata.get("tokenizer.ggml.tokens"), file.metadata.get("tokenizer.ggml.token_type")
    named = [file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    ids = {token_id for token_id in named if isinstance(token_id, int)}
    if isinstance(tokens, Strings) and isinstance(types, memoryview):
        control = (token_id for token_id, kind in enumerate(types) if kind == CONTROL and token_id < len(tokens))
        ids |= {token_id for token_id in control if tokens[token_id] in _ENDS}
    return sorted(ids)


def _description(file: GgufFile) -> str:
    """What the file says it is: its name, how most of it is stored, its size."""
    name, infos = file.metadata.get("general.name"), file.tensors.values()
    bytes_of = {info.type: 0 for info in infos}
    for info in infos:
        bytes_of[info.type] += info.num_bytes
    main = max(bytes_of, key=lambda kind: bytes_of[kind])
    millions = sum(prod(info.shape) for info in infos) / 1e6
    size = f"{millions / 1000:.3g} B" if millions >= 1000 else f"{millions:.3g} M"
    bits = re.search(r"\d+", main.name)
    return f"{name or 'no name'}, {bits[0] if bits else ''}-bit GGUF ({main.name}), {size} parameters"


def places(file: GgufFile) -> dict[str, Place]:
    """Where the tensor of each checkpoint name is. What is known under no name keeps its own. Raises ConfigError."""
    architecture, keys = architecture_of(file), _Keys(file)
    found: dict[str, Place] = {}
    for info in file.tensors.values():
        if info.name not in _ROPE_FACTORS:
            found.update(_places_of(info, architecture, keys))
    return found


def _places_of(info: TensorInfo, architecture: Architecture, keys: _Keys) -> list[tuple[str, Place]]:
    match = re.fullmatch(r"(?:blk\.(\d{1,5})\.)?(\w+)\.(weight|bias)", info.name)
    names = _NAMES | dict(architecture.names)
    if match is None or match[2] not in names:
        return [(info.name, Place(info))]
    layer, leaf, ending = match.groups()
    name = f"{names[leaf]}.{ending}" if layer is None else f"{names['blk']}.{layer}.{names[leaf]}.{ending}"
    if "{}" in name and info.shape[0] == keys("expert_count") <= _MAX_EXPERTS:
        return [(name.format(expert), Place(info, expert=expert)) for expert in range(info.shape[0])]
    place = Place(
        info,
        num_rotated_heads=_num_heads(leaf, keys) if architecture.interleaves_heads else 0,
        adds_one=architecture.norms_add_one and leaf.endswith("norm"),
        is_transposed=leaf in architecture.transposed and ending == "weight",
    )
    return [(name, place)]


def _num_heads(leaf: str, keys: _Keys) -> int:
    num_heads: int = keys("attention.head_count")
    return {"attn_q": num_heads, "attn_k": keys("attention.head_count_kv") or num_heads}.get(leaf, 0)
