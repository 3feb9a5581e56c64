"""Fields of config.json that single families need, from a GGUF's metadata. Imports no torch."""

from typing import Any

from ...errors import ConfigError
from .keys import Keys

_SIGMOID = 2  # value of expert_gating_func


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


def granite_moe_fields(keys: Keys) -> dict[str, Any]:
    """Return Granite MoE's fields: Granite's and its experts."""
    return {**granite_fields(keys), **mixtral_fields(keys)}


def mixtral_fields(keys: Keys) -> dict[str, Any]:
    """Return Mixtral's fields: its experts."""
    return {"num_local_experts": keys("expert_count"), "num_experts_per_tok": keys("expert_used_count")}


def phimoe_fields(keys: Keys) -> dict[str, Any]:
    """Return Phi-3.5-MoE's fields: Phi-3's, its experts and its head's bias."""
    return {**phi3_fields(keys), **mixtral_fields(keys), "lm_head_bias": "output.bias" in keys.file.tensors}


def llama4_fields(keys: Keys) -> dict[str, Any]:
    """Return Llama 4's fields: its experts. Like llama.cpp, tell Maverick, without norms of q and k, by their number.

    No file has chunks, growing queries or layers without positions: all published models share these values.
    """
    return {
        **mixtral_fields(keys),
        "intermediate_size": keys("expert_feed_forward_length"),
        "intermediate_size_mlp": keys("feed_forward_length"),
        "interleave_moe_layer_step": keys("interleave_moe_layer_step"),
        "use_qk_norm": keys("expert_count") != 128,
    }


def gpt_oss_fields(keys: Keys) -> dict[str, Any]:
    """Return gpt-oss's fields: its experts, and the window of every other layer."""
    return {
        **mixtral_fields(keys),
        "intermediate_size": keys("expert_feed_forward_length"),
        "sliding_window": keys("attention.sliding_window"),
    }


def olmoe_fields(keys: Keys) -> dict[str, Any]:
    """Return OLMoE's fields: its experts, whose weights do not sum to 1."""
    return {**mixtral_fields(keys), "norm_topk_prob": False}


def apertus_fields(keys: Keys) -> dict[str, Any]:
    """Return Apertus's fields: the bends of each layer's activation. Raises ConfigError."""
    bends: dict[str, Any] = {name: keys.file.metadata.get(f"xielu.{name}") for name in ("alpha_p", "alpha_n")}
    for name, values in bends.items():
        if not isinstance(values, memoryview) or len(values) != keys("block_count"):
            raise ConfigError(f"{keys.file.path}: xielu.{name} is no list with a value for each layer")
    return {f"xielu_{name}": list(values) for name, values in bends.items()}


def hunyuan_moe_fields(keys: Keys) -> dict[str, Any]:
    """Return Hunyuan MoE's fields: its experts."""
    return {
        "num_experts": keys("expert_count"),
        "moe_topk": keys("expert_used_count"),
        "moe_intermediate_size": keys("expert_feed_forward_length"),
    }


def minimax_fields(keys: Keys) -> dict[str, Any]:
    """Return MiniMax M2's fields: its experts."""
    check_sigmoid(keys)
    return mixtral_fields(keys)


def deepseek_fields(keys: Keys) -> dict[str, Any]:
    """Return the fields of mixtures like DeepSeek-V3's. Layers that predict more than one token are left out."""
    check_sigmoid(keys)
    return _deepseek_mixture(keys)


def latent_fields(keys: Keys) -> dict[str, Any]:
    """Return the fields of latent attention. Without sigmoid and a bias of scores they are DeepSeek V2's."""
    first = keys("leading_dense_block_count", 0)
    is_v3 = keys("expert_gating_func", 0) == _SIGMOID or f"blk.{first}.exp_probs_b.bias" in keys.file.tensors
    # Newer files describe the absorbed heads of latents, and these beside them.
    width = keys("attention.key_length_mla") or keys("attention.key_length")
    has_groups = (keys("expert_group_count") or 1) > 1
    return {
        **_deepseek_mixture(keys),
        "architectures": ["DeepseekV3ForCausalLM" if is_v3 else "DeepseekV2ForCausalLM"],
        "attention_bias": "blk.0.attn_kv_a_mqa.bias" in keys.file.tensors,
        "q_lora_rank": keys("attention.q_lora_rank"),
        "kv_lora_rank": keys("attention.kv_lora_rank"),
        "qk_rope_head_dim": keys("rope.dimension_count"),
        "qk_nope_head_dim": width - keys("rope.dimension_count"),
        "v_head_dim": keys("attention.value_length_mla") or keys("attention.value_length"),
        "topk_method": "noaux_tc" if is_v3 else "group_limited_greedy" if has_groups else "greedy",
    }


def _deepseek_mixture(keys: Keys) -> dict[str, Any]:
    return {
        **mixtral_fields(keys),
        "num_hidden_layers": keys("block_count") - keys("nextn_predict_layers", 0),
        "n_routed_experts": keys("expert_count"),
        "n_shared_experts": keys("expert_shared_count", 0),
        "n_group": keys("expert_group_count"),
        "topk_group": keys("expert_group_used_count"),
        "moe_intermediate_size": keys("expert_feed_forward_length"),
        "first_k_dense_replace": keys("leading_dense_block_count", 0),
        "norm_topk_prob": bool(keys("expert_weights_norm", False)),
        "routed_scaling_factor": keys.number("expert_weights_scale") or 1.0,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in keys.file.tensors,
        "sliding_window": 0,
    }


def check_sigmoid(keys: Keys) -> None:
    """Raise ConfigError if the file's experts are not scored by sigmoid."""
    if keys("expert_gating_func", _SIGMOID) != _SIGMOID:
        raise ConfigError(f"{keys.file.path}: expert_gating_func {keys('expert_gating_func')!r} is no sigmoid")


def olmo3_fields(keys: Keys) -> dict[str, Any]:
    """Return OLMo 3's fields: windows, and which layers have them."""
    return _windows(keys)


def exaone4_fields(keys: Keys) -> dict[str, Any]:
    """Return EXAONE 4's fields: windows, or none in the small models, which `None` would leave to a default."""
    return _windows(keys) if keys("attention.sliding_window") else {"sliding_window": 0}


def _windows(keys: Keys) -> dict[str, Any]:
    """Return a window and the kind of each layer. Raises ConfigError if the file has no kinds."""
    pattern = keys("attention.sliding_window_pattern")
    if not isinstance(pattern, memoryview) or len(pattern) != keys("block_count"):
        raise ConfigError(f"{keys.file.path}: attention.sliding_window_pattern is no list with a value for each layer")
    return {
        "sliding_window": keys("attention.sliding_window"),
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern],
    }


def cohere_fields(keys: Keys) -> dict[str, Any]:
    """Return Command R's fields: a factor of logits, norms of each head, a window."""
    return {
        "layer_norm_eps": keys.number("attention.layer_norm_epsilon"),
        "logit_scale": keys.number("logit_scale"),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in keys.file.tensors,
        "sliding_window": keys("attention.sliding_window"),
    }


def ernie_fields(keys: Keys) -> dict[str, Any]:
    """Return ERNIE 4.5's fields: one switch for all biases."""
    return {"use_bias": "blk.0.attn_q.bias" in keys.file.tensors}


def seed_oss_fields(keys: Keys) -> dict[str, Any]:
    """Return Seed-OSS's fields: the output's own switch for its bias."""
    return {"attention_out_bias": "blk.0.attn_output.bias" in keys.file.tensors}


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


def qwen2_moe_fields(keys: Keys) -> dict[str, Any]:
    """Return Qwen2-MoE's fields: Qwen3-MoE's with other defaults, and the expert of all tokens."""
    return {
        **qwen3_moe_fields(keys),
        "norm_topk_prob": False,  # true of all Qwen2-MoE models
        "shared_expert_intermediate_size": keys("expert_shared_feed_forward_length"),
    }


def ernie_moe_fields(keys: Keys) -> dict[str, Any]:
    """Return ERNIE 4.5 MoE's fields: its experts and the layers that have them."""
    return {
        **ernie_fields(keys),
        "moe_num_experts": keys("expert_count"),
        "moe_k": keys("expert_used_count"),
        "moe_intermediate_size": keys("expert_feed_forward_length"),
        "moe_num_shared_experts": keys("expert_shared_count", 0),
        "moe_layer_interval": keys("interleave_moe_layer_step", 1),
        "moe_layer_start_index": keys("leading_dense_block_count", 0),
    }


def falcon_fields(keys: Keys) -> dict[str, Any]:
    """Return Falcon's fields. The converter orders all queries, keys and values; 40B's norms have two names."""
    has_two = "blk.0.attn_norm_2.weight" in keys.file.tensors
    return {
        "ffn_hidden_size": keys("feed_forward_length"),
        "layer_norm_epsilon": keys.number("attention.layer_norm_epsilon"),
        "new_decoder_architecture": True,
        "num_kv_heads": keys("attention.head_count_kv"),
        "norm_names": ("ln_attn", "input_layernorm") if has_two else ("input_layernorm", "input_layernorm"),
        "bias": "blk.0.attn_qkv.bias" in keys.file.tensors,
        "has_ordered_qkv": True,
    }


def neox_fields(keys: Keys) -> dict[str, Any]:
    """Return GPT-NeoX's fields. The converter orders all queries, keys and values."""
    head_dim = keys("embedding_length") // keys("attention.head_count")
    return {
        "layer_norm_eps": keys.number("attention.layer_norm_epsilon"),
        "rotary_pct": keys("rope.dimension_count") / head_dim,
        "use_parallel_residual": bool(keys("use_parallel_residual", True)),
        "attention_bias": "blk.0.attn_qkv.bias" in keys.file.tensors,
        "has_ordered_qkv": True,
    }


def stablelm_fields(keys: Keys) -> dict[str, Any]:
    """Return StableLM's fields: biases, norms of each head, parts side by side."""
    return {
        "layer_norm_eps": keys.number("attention.layer_norm_epsilon"),
        "use_qkv_bias": "blk.0.attn_q.bias" in keys.file.tensors,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in keys.file.tensors,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in keys.file.tensors,
    }


def starcoder2_fields(keys: Keys) -> dict[str, Any]:
    """Return StarCoder 2's fields: its epsilon and one switch for all biases."""
    return {
        "norm_epsilon": keys.number("attention.layer_norm_epsilon"),
        "use_bias": "blk.0.attn_q.bias" in keys.file.tensors,
    }
