"""Fields of config.json that families with recurrent states need, from a GGUF's metadata. Imports no torch."""

from typing import Any

from ...errors import ConfigError
from .keys import Keys

# The tensor that tells the kind of a layer.
_KINDS = {
    "shortconv.conv": "conv",
    "ssm_in": "linear_attention",
    "attn_q": "full_attention",
    "ffn_gate_inp": "moe",
    "ffn_up": "mlp",
}


def delta_rule_fields(keys: Keys) -> dict[str, Any]:
    """Return the sizes of delta rules, and the layers with experts. Layers that predict more are left out."""
    num_layers = keys("block_count") - keys("nextn_predict_layers", 0)
    return {
        "num_hidden_layers": num_layers,
        "linear_value_head_dim": keys("ssm.inner_size") // keys("ssm.time_step_rank"),
        "intermediate_size": keys("feed_forward_length") or keys("expert_feed_forward_length"),
        "mlp_only_layers": _without(keys, num_layers, "ffn_gate_inp") if keys("expert_count") else None,
    }


def granite_hybrid_fields(keys: Keys) -> dict[str, Any]:
    """Return Granite 4's fields beside its state spaces and experts. Bamba's files are alike."""
    head_dim = keys("embedding_length") // keys("attention.head_count")
    return {
        "attention_multiplier": keys.number("attention.scale") or head_dim**-0.5,
        "shared_intermediate_size": keys("expert_shared_feed_forward_length") or keys("feed_forward_length"),
        "layer_types": _kinds(keys, "ssm_in", "attn_q"),
        "position_embedding_type": "rope" if keys("rope.scaling.finetuned") else "nope",
    }


def nemotron_h_fields(keys: Keys) -> dict[str, Any]:
    """Return the kinds of Nemotron-H's layers, and their sizes."""
    kinds = _kinds(keys, *_KINDS)
    return {
        "layer_types": kinds,
        "num_hidden_layers": len(kinds),
        "mamba_head_dim": keys("ssm.inner_size") // keys("ssm.time_step_rank"),
        "use_conv_bias": _has_conv_bias(keys),
        "intermediate_size": keys.largest("feed_forward_length"),
        "norm_topk_prob": bool(keys("expert_weights_norm", False)),
        "routed_scaling_factor": keys.number("expert_weights_scale") or 1.0,
    }


def short_convolutions_fields(keys: Keys) -> dict[str, Any]:
    """Return the kinds of LFM2's layers."""
    return {
        "num_key_value_heads": keys.largest("attention.head_count_kv"),
        "layer_types": _kinds(keys, "shortconv.conv", "attn_q"),
    }


def lfm2_moe_fields(keys: Keys) -> dict[str, Any]:
    """Return the sums of LFM2-MoE's experts' weights."""
    return {
        "norm_topk_prob": bool(keys("expert_weights_norm", True)),
        "routed_scaling_factor": keys.number("expert_weights_scale") or 1.0,
        "use_expert_bias": any(".exp_probs_b" in name for name in keys.file.tensors),
    }


def mamba2_fields(keys: Keys) -> dict[str, Any]:
    """Return Mamba-2's sizes."""
    return {
        "head_dim": keys("ssm.inner_size") // keys("ssm.time_step_rank"),
        "expand": keys("ssm.inner_size") // keys("embedding_length"),
        "use_conv_bias": _has_conv_bias(keys),
    }


def state_space_fields(keys: Keys) -> dict[str, Any]:
    """Return the sizes of state spaces under Bamba's names."""
    return {
        "num_key_value_heads": keys.largest("attention.head_count_kv"),
        "mamba_d_head": keys("ssm.inner_size") // keys("ssm.time_step_rank"),
        "mamba_conv_bias": _has_conv_bias(keys),
    }


def _has_conv_bias(keys: Keys) -> bool:
    return any(name.endswith(".ssm_conv1d.bias") for name in keys.file.tensors)


def _kinds(keys: Keys, *tensors: str) -> list[str]:
    """Return the kind of each layer by the first of these tensors that it has. Raises ConfigError."""
    kinds = []
    for layer in range(keys("block_count") - keys("nextn_predict_layers", 0)):
        found = [name for name in tensors if f"blk.{layer}.{name}.weight" in keys.file.tensors]
        if not found:
            raise ConfigError(f"{keys.file.path}: layer {layer} has none of {', '.join(tensors)}; fetch the file again")
        kinds.append(_KINDS[found[0]])
    return kinds


def _without(keys: Keys, num_layers: int, tensor: str) -> list[int]:
    return [layer for layer in range(num_layers) if f"blk.{layer}.{tensor}.weight" not in keys.file.tensors]
