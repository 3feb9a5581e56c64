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
