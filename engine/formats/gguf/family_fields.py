"""Fields of config.json that single families need, from a GGUF's metadata. Imports no torch."""

from typing import Any

from ...errors import ConfigError
from .keys import Keys

_SIGMOID = 2  # value of expert_gating_func


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


def llama4_fields(keys: Keys) -> dict[str, Any]:
    """Like llama.cpp, tell Maverick, without norms of q and k, by its number of experts.

    No file has chunks, growing queries or layers without positions: all published models share these values.
    """
    return {"use_qk_norm": keys("expert_count") != 128}


def apertus_fields(keys: Keys) -> dict[str, Any]:
    """Return Apertus's fields: the bends of each layer's activation. Raises ConfigError."""
    bends: dict[str, Any] = {name: keys.file.metadata.get(f"xielu.{name}") for name in ("alpha_p", "alpha_n")}
    for name, values in bends.items():
        if not isinstance(values, memoryview) or len(values) != keys("block_count"):
            raise ConfigError(f"{keys.file.path}: xielu.{name} is no list with a value for each layer")
    return {f"xielu_{name}": list(values) for name, values in bends.items()}


def latent_fields(keys: Keys) -> dict[str, Any]:
    """Return the fields of latent attention. Without sigmoid and a bias of scores they are DeepSeek V2's."""
    first = keys("leading_dense_block_count", 0)
    is_v3 = keys("expert_gating_func", 0) == _SIGMOID or f"blk.{first}.exp_probs_b.bias" in keys.file.tensors
    # Newer files describe the absorbed heads of latents, and these beside them.
    width = keys("attention.key_length_mla") or keys("attention.key_length")
    has_groups = (keys("expert_group_count") or 1) > 1
    return {
        "architectures": ["DeepseekV3ForCausalLM" if is_v3 else "DeepseekV2ForCausalLM"],
        "qk_nope_head_dim": width - keys("rope.dimension_count"),
        "v_head_dim": keys("attention.value_length_mla") or keys("attention.value_length"),
        "topk_method": "noaux_tc" if is_v3 else "group_limited_greedy" if has_groups else "greedy",
    }


def kimi_linear_fields(keys: Keys) -> dict[str, Any]:
    """Return the kinds of Kimi Linear's layers, and the widths of their heads."""
    rotated = keys("rope.dimension_count")
    return {
        "layer_types": _kinds(keys, "ssm_conv1d_q", "attn_kv_a_mqa"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys("attention.key_length_mla") - rotated,
        "norm_topk_prob": bool(keys("expert_weights_norm", True)),
    }


def deepseek_mixture_fields(keys: Keys) -> dict[str, Any]:
    """Return the sums of experts' weights, and the number of layers without those that predict more than one token."""
    return {
        "num_hidden_layers": keys("block_count") - keys("nextn_predict_layers", 0),
        "norm_topk_prob": bool(keys("expert_weights_norm", False)),
        "routed_scaling_factor": keys.number("expert_weights_scale") or 1.0,
    }


def sigmoid_fields(keys: Keys) -> dict[str, Any]:
    """Return no field. Raises ConfigError if the file's experts are not scored by sigmoid."""
    if keys("expert_gating_func", _SIGMOID) != _SIGMOID:
        raise ConfigError(f"{keys.file.path}: expert_gating_func {keys('expert_gating_func')!r} is no sigmoid")
    return {}


def exaone4_fields(keys: Keys) -> dict[str, Any]:
    """Return EXAONE 4's fields: windows, or none in the small models, which `None` would leave to a default."""
    return windows_fields(keys) if keys("attention.sliding_window") else {"sliding_window": 0}


def windows_fields(keys: Keys) -> dict[str, Any]:
    """Return a window and the kind of each layer. Raises ConfigError if the file has no kinds."""
    pattern = keys("attention.sliding_window_pattern")
    if not isinstance(pattern, memoryview) or len(pattern) != keys("block_count"):
        raise ConfigError(f"{keys.file.path}: attention.sliding_window_pattern is no list with a value for each layer")
    return {
        "sliding_window": keys("attention.sliding_window"),
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern],
    }


def layer_ropes_fields(keys: Keys) -> dict[str, Any]:
    """Return the base of each layer's positions: 0 for a layer without. Without a pattern all have some."""
    pattern, base = keys("attention.rope_pattern"), keys.number("rope.freq_base") or 10_000.0
    rotates = pattern if isinstance(pattern, memoryview) else ()
    return {"layer_rope_theta": [base * bool(one) for one in rotates]}


def glm4_fields(keys: Keys) -> dict[str, Any]:
    """Refuse the text parts of models with images, whose converter reorders q and k. Raises ConfigError."""
    if keys("rope.dimension_sections") or keys("nextn_predict_layers"):
        raise ConfigError(f"{keys.file.path}: of architecture 'glm4' only GLM-4-0414 is read; take its safetensors")
    return {}


def nemotron_fields(keys: Keys) -> dict[str, Any]:
    """Return Nemotron's fields: the epsilon of its norms. Raises ConfigError if the converter's rotation is wrong."""
    # The converter computes the rotated part from hidden size / heads, even where a head is wider.
    num_heads, head_dim = keys("attention.head_count"), keys("attention.key_length")
    if head_dim and head_dim * num_heads != keys("embedding_length"):
        raise ConfigError(f"{keys.file.path}: its part of a head that turns is not known; take its safetensors")
    return {"norm_eps": keys.number("attention.layer_norm_epsilon")}


def mistral3_fields(keys: Keys) -> dict[str, Any]:
    """Return Ministral 3's fields, whose queries grow with positions; Mistral Small 3 has none of that."""
    beta, scaling = keys.number("attention.temperature_scale"), "rope.scaling"
    if not beta:
        return {"architectures": ["MistralForCausalLM"], "sliding_window": None}
    mscale = keys.number(f"{scaling}.yarn_log_multiplier")
    return {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": keys.number(f"{scaling}.factor"),
            "original_max_position_embeddings": keys(f"{scaling}.original_context_length"),
            "beta_fast": keys.number(f"{scaling}.yarn_beta_fast") or 32.0,
            "beta_slow": keys.number(f"{scaling}.yarn_beta_slow") or 1.0,
            "mscale": mscale,
            "mscale_all_dim": mscale,
            "llama_4_scaling_beta": float(f"{beta:.7g}"),
        }
    }


def minicpm_fields(keys: Keys) -> dict[str, Any]:
    """Return MiniCPM's fields: Granite's multipliers, by MiniCPM's own formulas where an old file leaves them out."""
    hidden_size, num_layers = keys("embedding_length"), keys("block_count")
    return {
        "embedding_multiplier": keys.number("embedding_scale") or 12.0,
        "attention_multiplier": (hidden_size // keys("attention.head_count")) ** -0.5,
        "residual_multiplier": keys.number("residual_scale") or 1.4 / num_layers**0.5,
        "logits_scaling": keys.number("logit_scale") or hidden_size / 256,
    }


def falcon_fields(keys: Keys) -> dict[str, Any]:
    """Return the names of Falcon's norms: 40B's have two. The converter orders all queries, keys and values."""
    has_two = "blk.0.attn_norm_2.weight" in keys.file.tensors
    return {"norm_names": ("ln_attn", "input_layernorm") if has_two else ("input_layernorm", "input_layernorm")}


def neox_fields(keys: Keys) -> dict[str, Any]:
    """Return GPT-NeoX's rotation and layout. The converter orders all queries, keys and values."""
    head_dim = keys("embedding_length") // keys("attention.head_count")
    return {
        "rotary_pct": keys("rope.dimension_count") / head_dim,
        "use_parallel_residual": bool(keys("use_parallel_residual", True)),
    }


def stablelm_fields(keys: Keys) -> dict[str, Any]:
    """Return StableLM's layout: parts are side by side where there is one norm."""
    return {"use_parallel_residual": "blk.0.ffn_norm.weight" not in keys.file.tensors}


POOLING = {1: "MEAN", 2: "CLS", 3: "LAST"}  # values of pooling_type


def encoder_fields(keys: Keys) -> dict[str, Any]:
    """Return the fields of all encoders."""
    types = keys.file.tensors.get("token_types.weight")
    return {
        "layer_norm_eps": keys.number("attention.layer_norm_epsilon"),
        "type_vocab_size": types.shape[0] if types else 1,
        "pooling_type": POOLING.get(keys("pooling_type")),
    }


def bert_fields(keys: Keys) -> dict[str, Any]:
    """Return BERT's fields. A RoBERTa is one, too: the converter cuts the positions that no token has."""
    positions = keys.file.tensors.get("position_embd.weight")
    scores = "cls.output.weight" in keys.file.tensors
    return {
        "architectures": ["RobertaForSequenceClassification" if scores else "BertModel"],
        "max_position_embeddings": positions.shape[0] if positions else keys("context_length"),
        "pad_token_id": -1,  # RoBERTa's positions begin after that of the padding
        "num_labels": keys.file.tensors["cls.output.weight"].shape[0] if scores else None,
    }


def nomic_fields(keys: Keys) -> dict[str, Any]:
    """Return Nomic's fields: rotary positions."""
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": keys.number("rope.freq_base") or 1000.0},
        "hidden_act": "silu",
    }


def modern_fields(keys: Keys) -> dict[str, Any]:
    """Return ModernBERT's fields: windows in two layers of three, and two rotations."""
    return {
        "global_rope_theta": keys.number("rope.freq_base") or 160_000.0,
        "local_rope_theta": keys.number("rope.freq_base_swa") or 10_000.0,
    }


# The tensor that tells the kind of a layer.
_KINDS = {
    "shortconv.conv": "conv",
    "ssm_in": "linear_attention",
    "ssm_conv1d_q": "linear_attention",
    "attn_kv_a_mqa": "full_attention",
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
