"""Fields of config.json that single families need, from a GGUF's metadata. Imports no torch."""

from typing import Any

from .keys import Keys


def gpt2_fields(keys: Keys) -> dict[str, Any]:
    """Return GPT-2's fields, under its own names."""
    return {
        "n_embd": keys("embedding_length"),
        "n_layer": keys("block_count"),
        "n_head": keys("attention.head_count"),
        "n_positions": keys("context_length"),
        "n_inner": keys("feed_forward_length"),
        "layer_norm_epsilon": keys.number("attention.layer_norm_epsilon"),
    }


def gemma2_fields(keys: Keys) -> dict[str, Any]:
    """Return Gemma 2's fields: soft-caps, windows, and a scale of attention scores."""
    # Like llama.cpp, tell the 27B models by their number of layers: only these divide by hidden size / heads.
    is_27b = keys("block_count") in (46, 62)
    head_dim = keys("embedding_length") // keys("attention.head_count") if is_27b else keys("attention.key_length")
    scale = keys.number("attention.scale")
    return {
        "query_pre_attn_scalar": scale**-2 if scale else head_dim,
        "sliding_window": keys("attention.sliding_window"),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping"),
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
    }


def gemma3_fields(keys: Keys) -> dict[str, Any]:
    """Return Gemma 3's fields: Gemma 2's and two rope thetas."""
    pattern = keys("attention.sliding_window_pattern")
    return {
        **gemma2_fields(keys),
        "rope_theta": keys.number("rope.freq_base") or 1e6,
        "sliding_window_pattern": pattern if isinstance(pattern, int) else None,
        "rope_local_base_freq": keys.number("rope.freq_base_swa"),
    }


def phi3_fields(keys: Keys) -> dict[str, Any]:
    """Return Phi-3's fields: a window, and the context length before longrope."""
    return {
        "sliding_window": keys("attention.sliding_window"),
        "original_max_position_embeddings": keys("rope.scaling.original_context_length"),
    }


def qwen3_moe_fields(keys: Keys) -> dict[str, Any]:
    """Return Qwen3-MoE's fields: its experts, and the layers without any."""
    return {
        "num_experts": keys("expert_count"),
        "num_experts_per_tok": keys("expert_used_count"),
        "moe_intermediate_size": keys("expert_feed_forward_length"),
        "norm_topk_prob": True,  # true of all Qwen3-MoE models
        "mlp_only_layers": [
            layer for layer in range(keys("block_count")) if f"blk.{layer}.ffn_gate_inp.weight" not in keys.file.tensors
        ],
        "intermediate_size": keys("feed_forward_length") or keys("expert_feed_forward_length"),
    }


def granite_fields(keys: Keys) -> dict[str, Any]:
    """Return Granite's fields: four multipliers."""
    return {
        "embedding_multiplier": keys.number("embedding_scale"),
        "attention_multiplier": keys.number("attention.scale"),
        "residual_multiplier": keys.number("residual_scale"),
        "logits_scaling": keys.number("logit_scale"),
    }
