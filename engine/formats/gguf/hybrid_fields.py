"""Fields of config.json that families with recurrent states need, from a GGUF's metadata. Imports no torch."""

from typing import Any

from ...errors import ConfigError
from .family_fields import check_sigmoid, granite_moe_fields, mixtral_fields
from .keys import Keys

# The tensor that tells the kind of a layer.
_KINDS = {
    "shortconv.conv": "conv",
    "ssm_in": "linear_attention",
    "attn_q": "full_attention",
    "ffn_gate_inp": "moe",
    "ffn_up": "mlp",
}


def qwen3_5_fields(keys: Keys) -> dict[str, Any]:
    """Return Qwen3.5's fields: heads of the delta rule in llama.cpp's order, and experts."""
    return {**qwen3_next_fields(keys), "linear_tiles_heads": True}


def qwen3_next_fields(keys: Keys) -> dict[str, Any]:
    """Return Qwen3-Next's fields: heads of the delta rule, and experts. Layers that predict more are left out."""
    num_v_heads = keys("ssm.time_step_rank")
    num_layers = keys("block_count") - keys("nextn_predict_layers", 0)
    return {
        "num_hidden_layers": num_layers,
        "full_attention_interval": keys("full_attention_interval"),
        "attention_bias": False,
        "linear_conv_kernel_dim": keys("ssm.conv_kernel"),
        "linear_key_head_dim": keys("ssm.state_size"),
        "linear_value_head_dim": keys("ssm.inner_size") // num_v_heads,
        "linear_num_key_heads": keys("ssm.group_count"),
        "linear_num_value_heads": num_v_heads,
        "num_experts": keys("expert_count"),
        "num_experts_per_tok": keys("expert_used_count"),
        "moe_intermediate_size": keys("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys("expert_shared_feed_forward_length"),
        "intermediate_size": keys("feed_forward_length") or keys("expert_feed_forward_length"),
        "mlp_only_layers": _without(keys, num_layers, "ffn_gate_inp") if keys("expert_count") else None,
    }


def falcon_h1_fields(keys: Keys) -> dict[str, Any]:
    """Return Falcon-H1's fields: its state spaces. The multipliers are part of the file's weights."""
    return {
        **_mamba_fields(keys),
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in keys.file.tensors,
        "mamba_norm_before_gate": False,
    }


def granite_hybrid_fields(keys: Keys) -> dict[str, Any]:
    """Return Granite 4's fields: Granite's, its state spaces, and experts if there are any. Bamba's files are alike."""
    head_dim = keys("embedding_length") // keys("attention.head_count")
    return {
        **_mamba_fields(keys),
        **granite_moe_fields(keys),
        "attention_multiplier": keys.number("attention.scale") or head_dim**-0.5,
        "num_local_experts": keys("expert_count", 0),
        "shared_intermediate_size": keys("expert_shared_feed_forward_length") or keys("feed_forward_length"),
        "layer_types": _kinds(keys, "ssm_in", "attn_q"),
        "position_embedding_type": "rope" if keys("rope.scaling.finetuned") else "nope",
        "rope_scaling": None,
    }


def nemotron_h_fields(keys: Keys) -> dict[str, Any]:
    """Return Nemotron-H's fields: its state spaces, the kind of each layer, and experts if there are any."""
    kinds = _kinds(keys, *_KINDS)
    return {
        **_mamba_fields(keys),
        "layer_types": kinds,
        "num_hidden_layers": len(kinds),
        "layer_norm_epsilon": keys.number("attention.layer_norm_rms_epsilon"),
        "mamba_num_heads": keys("ssm.time_step_rank"),
        "mamba_head_dim": keys("ssm.inner_size") // keys("ssm.time_step_rank"),
        "n_groups": keys("ssm.group_count"),
        "ssm_state_size": keys("ssm.state_size"),
        "conv_kernel": keys("ssm.conv_kernel"),
        "use_conv_bias": _has_conv_bias(keys),
        "use_bias": False,
        "intermediate_size": keys.largest("feed_forward_length"),
        "n_routed_experts": keys("expert_count"),
        "num_experts_per_tok": keys("expert_used_count"),
        "moe_intermediate_size": keys("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": keys("expert_shared_feed_forward_length"),
        "moe_latent_size": keys("moe_latent_size"),
        "norm_topk_prob": bool(keys("expert_weights_norm", False)),
        "routed_scaling_factor": keys.number("expert_weights_scale") or 1.0,
        "n_group": keys("expert_group_count"),
        "topk_group": keys("expert_group_used_count"),
    }


def lfm2_fields(keys: Keys) -> dict[str, Any]:
    """Return LFM2's fields: its convolutions, and the kind of each layer."""
    return {
        "num_key_value_heads": keys.largest("attention.head_count_kv"),
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "conv_L_cache": keys("shortconv.l_cache"),
        "layer_types": _kinds(keys, "shortconv.conv", "attn_q"),
        "block_auto_adjust_ff_dim": False,
    }


def lfm2_moe_fields(keys: Keys) -> dict[str, Any]:
    """Return LFM2-MoE's fields: LFM2's and its experts."""
    check_sigmoid(keys)
    return {
        **lfm2_fields(keys),
        **mixtral_fields(keys),
        "moe_intermediate_size": keys("expert_feed_forward_length"),
        "num_dense_layers": keys("leading_dense_block_count", 0),
        "norm_topk_prob": bool(keys("expert_weights_norm", True)),
        "routed_scaling_factor": keys.number("expert_weights_scale") or 1.0,
        "use_expert_bias": any(".exp_probs_b" in name for name in keys.file.tensors),
    }


def mamba2_fields(keys: Keys) -> dict[str, Any]:
    """Return Mamba-2's fields."""
    num_heads = keys("ssm.time_step_rank")
    return {
        "num_heads": num_heads,
        "head_dim": keys("ssm.inner_size") // num_heads,
        "expand": keys("ssm.inner_size") // keys("embedding_length"),
        "n_groups": keys("ssm.group_count"),
        "state_size": keys("ssm.state_size"),
        "conv_kernel": keys("ssm.conv_kernel"),
        "layer_norm_epsilon": keys.number("attention.layer_norm_rms_epsilon"),
        "use_conv_bias": _has_conv_bias(keys),
    }


def _mamba_fields(keys: Keys) -> dict[str, Any]:
    """Return the fields of state spaces under Bamba's names."""
    num_heads = keys("ssm.time_step_rank")
    return {
        "num_key_value_heads": keys.largest("attention.head_count_kv"),
        "mamba_d_ssm": keys("ssm.inner_size"),
        "mamba_n_heads": num_heads,
        "mamba_d_head": keys("ssm.inner_size") // num_heads,
        "mamba_n_groups": keys("ssm.group_count"),
        "mamba_d_state": keys("ssm.state_size"),
        "mamba_d_conv": keys("ssm.conv_kernel"),
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
