"""Fields of config.json that Gemma's families need, from a GGUF's metadata. Imports no torch."""

from statistics import NormalDist
from typing import Any

from ...errors import ConfigError
from .family_fields import POOLING
from .keys import Keys


def gemma2_scale_fields(keys: Keys) -> dict[str, Any]:
    """Return the scale of attention scores. Like llama.cpp, tell the 27B models by their number of layers."""
    is_27b = keys("block_count") in (46, 62)  # only these divide by hidden size / heads
    head_dim = keys("embedding_length") // keys("attention.head_count") if is_27b else keys("attention.key_length")
    scale = keys.number("attention.scale")
    return {"query_pre_attn_scalar": scale**-2 if scale else head_dim}


def gemma3_fields(keys: Keys) -> dict[str, Any]:
    """Return the rope theta of full attention, and how often it comes."""
    pattern = keys("attention.sliding_window_pattern")
    return {
        "rope_theta": keys.number("rope.freq_base") or 1e6,
        "sliding_window_pattern": pattern if isinstance(pattern, int) else None,
    }


def embedding_gemma_fields(keys: Keys) -> dict[str, Any]:
    """Return EmbeddingGemma's fields, and the widths of the matrices behind its mean."""
    names = [name for name in ("dense_2.weight", "dense_3.weight") if name in keys.file.tensors]
    return {
        "use_bidirectional_attention": True,
        "pooling_type": POOLING.get(keys("pooling_type")),
        "dense_widths": {name: keys.file.tensors[name].shape[0] for name in names},
    }


def gemma3n_fields(keys: Keys) -> dict[str, Any]:
    """Return Gemma 3n's fields. What a file may leave out is fixed in llama.cpp."""
    sizes, scales = keys("feed_forward_length"), keys("activation_sparsity_scale")
    shared, laurel = keys("attention.shared_kv_layers"), keys.file.tensors.get("blk.0.laurel_l.weight")
    return {
        "rope_theta": keys.number("rope.freq_base") or 1e6,
        "num_kv_shared_layers": keys("block_count") - 20 if shared is None else shared,
        "intermediate_size": list(sizes) if isinstance(sizes, memoryview) else sizes,
        # Scales are the normal distribution's quantiles, in float32.
        "activation_sparsity_pattern": scales and [round(NormalDist().cdf(scale), 6) for scale in scales],
        "laurel_rank": laurel and laurel.shape[0],
        "final_logit_softcapping": keys.number("final_logit_softcapping") or 30.0,
    }


def gemma4_fields(keys: Keys) -> dict[str, Any]:
    """Return Gemma 4's fields: each layer's heads and the mixture. Raises ConfigError."""
    num_layers, kv_heads = keys("block_count"), keys("attention.head_count_kv")
    kinds = shared_kv_fields(keys)["layer_types"]
    widths = {
        "sliding_attention": keys("attention.key_length_swa") or keys("attention.key_length"),
        "full_attention": keys("attention.key_length"),
    }
    if not isinstance(kv_heads, memoryview):
        kv_heads = [kv_heads] * num_layers
    own = {
        str(layer): {"num_key_value_heads": heads, "head_dim": widths[kind]}
        for layer, (heads, kind) in enumerate(zip(kv_heads, kinds, strict=True))
    }
    first_full = kinds.index("full_attention")
    return {
        **_gemma4_sizes(keys, num_layers - (keys("attention.shared_kv_layers") or 0)),
        "num_key_value_heads": kv_heads[0],
        "head_dim": widths["sliding_attention"],
        "per_layer_config": own,
        "attention_k_eq_v": f"blk.{first_full}.attn_v.weight" not in keys.file.tensors,
        "rope_parameters": _gemma4_ropes(keys, widths),
        "enable_moe_block": bool(keys("expert_count")),
    }


def shared_kv_fields(keys: Keys) -> dict[str, Any]:
    """Return the kinds of layers, and the per-layer inputs. Raises ConfigError."""
    num_layers, pattern = keys("block_count"), keys("attention.sliding_window_pattern", 5)
    if isinstance(pattern, int):
        pattern = [layer % pattern for layer in range(1, num_layers + 1)]
    if len(pattern) != num_layers:
        raise ConfigError(f"{keys.file.path}: attention.sliding_window_pattern must have a value for each layer")
    size = keys("embedding_length_per_layer_input")
    table = keys.file.tensors.get("per_layer_token_embd.weight")
    return {
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern],
        "sliding_window": keys("attention.sliding_window"),
        "hidden_size_per_layer_input": size if size is not None else table and table.shape[-1] // num_layers,
        "vocab_size_per_layer_input": table and table.shape[0],
    }


def _gemma4_sizes(keys: Keys, num_wide_from: int) -> dict[str, Any]:
    """Return the inner width of the MLPs, which may be double in layers that share keys. Raises ConfigError."""
    sizes, num_layers = keys("feed_forward_length"), keys("block_count")
    if not isinstance(sizes, memoryview):
        return {"intermediate_size": sizes}
    narrow = sizes[0]
    expected = [narrow] * num_wide_from + [2 * narrow] * (num_layers - num_wide_from)
    if list(sizes) not in (expected, [narrow] * num_layers):
        raise ConfigError(
            f"{keys.file.path}: feed_forward_length must be double in the layers that share keys, and there alone"
        )
    return {"intermediate_size": narrow, "use_double_wide_mlp": list(sizes) == expected}


def _gemma4_ropes(keys: Keys, widths: dict[str, int]) -> dict[str, Any]:
    """Return the rope of each kind of layer. Pairs that do not turn have huge divisors in the file."""
    width = widths["full_attention"]
    divisors = keys.vector("rope_freqs.weight")
    num_pairs = sum(divisor < 1e29 for divisor in divisors)
    if any(divisor != 1.0 for divisor in divisors[:num_pairs]) or len(divisors) != width // 2:
        raise ConfigError(f"{keys.file.path}: rope_freqs.weight has other values than Gemma 4's")
    turned = keys("rope.dimension_count_swa") or widths["sliding_attention"]
    return {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": keys.number("rope.freq_base") or 1e6,
            "partial_rotary_factor": min(1.0, (2 * num_pairs + 0.5) / width),  # rounded down to pairs
        },
        "sliding_attention": {
            "rope_theta": keys.number("rope.freq_base_swa") or 1e4,
            "partial_rotary_factor": turned / widths["sliding_attention"],
        },
    }
