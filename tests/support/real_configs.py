"""Parts of published models' config.json that matter here: every family, and each of its odd members."""

from typing import Any

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# The published lists of divisors have this length; their numbers do not matter here.
_LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + i / 50 for i in range(48)],
    "long_factor": [1.0 + i * i / 40 for i in range(48)],
}


def _config(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, **fields}


def _llama(**fields: Any) -> dict[str, Any]:
    common = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-5}
    return _config("LlamaForCausalLM", "llama", **common, torch_dtype="bfloat16", **fields)


def _qwen2(**fields: Any) -> dict[str, Any]:
    common = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "use_sliding_window": False}
    return _config("Qwen2ForCausalLM", "qwen2", **common, torch_dtype="bfloat16", **fields)


def _mistral(**fields: Any) -> dict[str, Any]:
    return _config("MistralForCausalLM", "mistral", hidden_act="silu", rms_norm_eps=1e-5, **fields)


def _latent(q_lora_rank: int | None, nope: int, value: int) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "hidden_act": "silu",
        "kv_lora_rank": 512,
        "q_lora_rank": q_lora_rank,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": 64,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "v_head_dim": value,
    }


def _deepseek_yarn(factor: float, mscale: float) -> dict[str, Any]:
    return {
        "type": "yarn",
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": factor,
        "mscale": mscale,
        "mscale_all_dim": mscale,
        "original_max_position_embeddings": 4096,
    }


def _phi3(**fields: Any) -> dict[str, Any]:
    common = {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 4096,
    }
    return _config("Phi3ForCausalLM", "phi3", **common, num_hidden_layers=32, hidden_size=3072, **fields)


def _gemma2(**fields: Any) -> dict[str, Any]:
    common = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "cache_implementation": "hybrid"}
    common |= {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "vocab_size": 256000}
    common |= {"max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": 4096}
    return _config("Gemma2ForCausalLM", "gemma2", **common, attention_bias=False, **fields)


def _gemma3(**fields: Any) -> dict[str, Any]:
    common = {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": False}
    common |= {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 256, "query_pre_attn_scalar": 256}
    common |= {"rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_local_base_freq": 10000, "sliding_window": 512}
    return _config(
        "Gemma3ForCausalLM", "gemma3_text", **common, max_position_embeddings=32768, vocab_size=262144, **fields
    )


def _gpt2(**fields: Any) -> dict[str, Any]:
    common = {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_ctx": 1024, "n_positions": 1024}
    return _config("GPT2LMHeadModel", "gpt2", **common, vocab_size=50257, **fields)


def _opt(**fields: Any) -> dict[str, Any]:
    common = {"_remove_final_layer_norm": False, "activation_function": "relu", "max_position_embeddings": 2048}
    return _config("OPTForCausalLM", "opt", **common, vocab_size=50272, torch_dtype="float16", **fields)


def _falcon(**fields: Any) -> dict[str, Any]:
    common = {"alibi": False, "bias": False, "layer_norm_epsilon": 1e-5, "parallel_attn": True, "vocab_size": 65024}
    return _config("FalconForCausalLM", "falcon", **common, **fields)


def _gemma(**fields: Any) -> dict[str, Any]:
    common = {"attention_bias": False, "head_dim": 256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6}
    return _config("GemmaForCausalLM", "gemma", **common, rope_theta=10000.0, vocab_size=256000, **fields)


def _gpt_neox(**fields: Any) -> dict[str, Any]:
    common = {"layer_norm_eps": 1e-5, "max_position_embeddings": 2048, "rotary_emb_base": 10000, "rotary_pct": 0.25}
    common |= {"tie_word_embeddings": False, "use_parallel_residual": True}
    return _config("GPTNeoXForCausalLM", "gpt_neox", **common, torch_dtype="float16", **fields)


def _granite(**fields: Any) -> dict[str, Any]:
    common = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-5}
    common |= {"residual_multiplier": 0.22, "rope_scaling": None, "tie_word_embeddings": True}
    return _config("GraniteForCausalLM", "granite", **{"attention_multiplier": 0.0078125, **common, **fields})


def _olmo2(**fields: Any) -> dict[str, Any]:
    common = {"attention_bias": False, "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6}
    common |= {"rope_scaling": None, "rope_theta": 500000, "tie_word_embeddings": False, "vocab_size": 100352}
    return _config("Olmo2ForCausalLM", "olmo2", **common, **fields)


def _stablelm(**fields: Any) -> dict[str, Any]:
    common = {"hidden_act": "silu", "layer_norm_eps": 1e-5, "max_position_embeddings": 4096, "rope_theta": 10000}
    return _config(
        "StableLmForCausalLM", "stablelm", **common, partial_rotary_factor=0.25, tie_word_embeddings=False, **fields
    )


def _starcoder2(**fields: Any) -> dict[str, Any]:
    common = {"hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 16384, "norm_epsilon": 1e-5}
    common |= {"norm_type": "layer_norm", "mlp_type": "default", "sliding_window": 4096, "use_bias": True}
    return _config("Starcoder2ForCausalLM", "starcoder2", **common, vocab_size=49152, **fields)


def _exaone4(**fields: Any) -> dict[str, Any]:
    common = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1000000, "vocab_size": 102400}
    scaling = {**_LLAMA3_ROPE, "factor": 16.0}
    return _config("Exaone4ForCausalLM", "exaone4", **common, rope_scaling=scaling, **fields)


def _glm(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    common = {"attention_bias": True, "head_dim": 128, "hidden_act": "silu", "partial_rotary_factor": 0.5}
    common |= {"rms_norm_eps": 1.5625e-7, "rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": 151552}
    return _config(architecture, model_type, **_shape(40, 4096, 13696, 32, 2), **common, **fields)


def _qwen3_5(architecture: str, model_type: str, tied: bool, **fields: Any) -> dict[str, Any]:
    """Return the config of a model with images, whose own fields are those of its text part."""
    text = {
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "tie_word_embeddings": tied,
        "vocab_size": 248320,
        **fields,
    }
    if not architecture.endswith("ForConditionalGeneration"):
        return _config(architecture, f"{model_type}_text", **text)
    text["model_type"] = f"{model_type}_text"
    return _config(architecture, model_type, text_config=text, tie_word_embeddings=tied)


def _sliding(layers: int, every: int) -> list[str]:
    kinds = ("full_attention", "sliding_attention")
    return [kinds[layer % every != 0] for layer in range(1, layers + 1)]


def _gemma3n(layers: int, inner: int, num_shared: int) -> dict[str, Any]:
    return {
        **_shape(layers, 2048, inner, 8, 2),
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * (layers - 10),
        "altup_active_idx": 0,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_num_inputs": 4,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 256,
        "intermediate_size": [inner] * layers,
        "laurel_rank": 64,
        "layer_types": _sliding(layers, 5),
        "max_position_embeddings": 32768,
        "num_kv_shared_layers": num_shared,
        "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": 512,
        "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144,
    }


def _gemma4(layers: int, every: int, **fields: Any) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "enable_moe_block": False,
        "final_logit_softcapping": 30.0,
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": _sliding(layers, every),
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "tie_word_embeddings": True,
        "use_bidirectional_attention": None,
        "vocab_size": 262144,
        "vocab_size_per_layer_input": 262144,
        **fields,
    }


_GEMMA4_E2B = _gemma4(
    35,
    5,
    attention_k_eq_v=False,
    hidden_size=1536,
    hidden_size_per_layer_input=256,
    intermediate_size=6144,
    num_attention_heads=8,
    num_global_key_value_heads=None,
    num_hidden_layers=35,
    num_key_value_heads=1,
    num_kv_shared_layers=20,
    sliding_window=512,
    use_double_wide_mlp=True,
)
_LLAMA4_SCOUT: dict[str, Any] = {
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "no_rope_layers": [],
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {**_LLAMA3_ROPE, "factor": 16.0},
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "use_qk_norm": True,
    "vocab_size": 202048,
}


def _whole(architecture: str, model_type: str, text: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the config of a model with encoders, whose text part has these fields."""
    return _config(architecture, model_type, text_config={**text, "model_type": f"{model_type}_text"}, **fields)


def _kinds(layers: int, *with_attention: int) -> list[str]:
    return ["attention" if layer in with_attention else "mamba" for layer in range(layers)]


def _granite4(layers: int, hidden: int, inner: int, heads: int, kv_heads: int, **fields: Any) -> dict[str, Any]:
    common = {"attention_bias": False, "embedding_multiplier": 12, "hidden_act": "silu", "residual_multiplier": 0.22}
    common |= {"mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64}
    common |= {"mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_proj_bias": False}
    common |= {"max_position_embeddings": 131072, "position_embedding_type": "nope", "rms_norm_eps": 1e-5}
    common |= {"rope_scaling": None, "rope_theta": 10000, "tie_word_embeddings": True, "vocab_size": 100352}
    shape = _shape(layers, hidden, inner, heads, kv_heads)
    return _config("GraniteMoeHybridForCausalLM", "granitemoehybrid", **shape, **common, **fields)


def _nemotron_h(pattern: str, **fields: Any) -> dict[str, Any]:
    common = {"attention_bias": False, "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 128}
    common |= {"layer_norm_epsilon": 1e-5, "mamba_hidden_act": "silu", "mamba_proj_bias": False, "mlp_bias": False}
    common |= {"mlp_hidden_act": "relu2", "n_groups": 8, "residual_in_fp32": False, "sliding_window": None}
    common |= {"ssm_state_size": 128, "tie_word_embeddings": False, "time_step_limit": [0.0, float("inf")]}
    common |= {"use_bias": False, "use_conv_bias": True, "vocab_size": 131072, "num_hidden_layers": len(pattern)}
    return _config("NemotronHForCausalLM", "nemotron_h", hybrid_override_pattern=pattern, **common, **fields)


def _shape(layers: int, hidden: int, inner: int, heads: int, kv_heads: int) -> dict[str, int]:
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    return dict(zip(names, (layers, hidden, inner, heads, kv_heads), strict=True))


def _plain_shape(layers: int, hidden: int, inner: int, heads: int) -> dict[str, int]:
    """Return a shape without a separate number of KV heads."""
    shape = _shape(layers, hidden, inner, heads, heads)
    del shape["num_key_value_heads"]
    return shape


_QWEN3_5_MOE: dict[str, Any] = {
    "hidden_size": 2048,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
}

REAL_CONFIGS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-2-7b-hf": _llama(
        **_shape(32, 4096, 11008, 32, 32), max_position_embeddings=4096, rope_scaling=None, vocab_size=32000
    ),
    "meta-llama/Llama-3.1-8B": _llama(
        **_shape(32, 4096, 14336, 32, 8),
        max_position_embeddings=131072,
        rope_theta=500000.0,
        rope_scaling={**_LLAMA3_ROPE, "factor": 8.0},
        vocab_size=128256,
        tie_word_embeddings=False,
    ),
    "meta-llama/Llama-3.2-1B": _llama(
        **_shape(16, 2048, 8192, 32, 8),
        head_dim=64,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        rope_scaling={**_LLAMA3_ROPE, "factor": 32.0},
        vocab_size=128256,
        tie_word_embeddings=True,
    ),
    "mistralai/Mistral-7B-v0.1": _mistral(
        **_shape(32, 4096, 14336, 32, 8),
        max_position_embeddings=32768,
        rope_theta=10000.0,
        sliding_window=4096,
        vocab_size=32000,
    ),
    "mistralai/Mistral-Nemo-Base-2407": _mistral(
        **_shape(40, 5120, 14336, 32, 8),
        head_dim=128,
        max_position_embeddings=131072,
        rope_theta=1e6,
        sliding_window=None,
        vocab_size=131072,
    ),
    "Qwen/Qwen2.5-0.5B": _qwen2(
        **_shape(24, 896, 4864, 14, 2),
        max_position_embeddings=32768,
        max_window_layers=24,
        sliding_window=32768,
        tie_word_embeddings=True,
        vocab_size=151936,
    ),
    "Qwen/Qwen2.5-7B-Instruct with YaRN": _qwen2(
        **_shape(28, 3584, 18944, 28, 4),
        max_position_embeddings=32768,
        max_window_layers=28,
        sliding_window=131072,
        tie_word_embeddings=False,
        rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
        vocab_size=152064,
    ),
    "Qwen/Qwen3-0.6B": _config(
        "Qwen3ForCausalLM",
        "qwen3",
        **_shape(28, 1024, 3072, 16, 8),
        attention_bias=False,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=40960,
        max_window_layers=28,
        rms_norm_eps=1e-6,
        rope_scaling=None,
        rope_theta=1000000,
        sliding_window=None,
        use_sliding_window=False,
        tie_word_embeddings=True,
        vocab_size=151936,
    ),
    "mistralai/Mixtral-8x7B-v0.1": _config(
        "MixtralForCausalLM",
        "mixtral",
        **_shape(32, 4096, 14336, 32, 8),
        hidden_act="silu",
        max_position_embeddings=32768,
        num_experts_per_tok=2,
        num_local_experts=8,
        rms_norm_eps=1e-5,
        rope_theta=1000000.0,
        sliding_window=None,
        tie_word_embeddings=False,
        vocab_size=32000,
    ),
    "Qwen/Qwen3-30B-A3B": _config(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        **_shape(48, 2048, 6144, 32, 4),
        attention_bias=False,
        decoder_sparse_step=1,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=40960,
        max_window_layers=48,
        mlp_only_layers=[],
        moe_intermediate_size=768,
        norm_topk_prob=True,
        num_experts=128,
        num_experts_per_tok=8,
        rms_norm_eps=1e-6,
        rope_scaling=None,
        rope_theta=1000000.0,
        sliding_window=None,
        use_sliding_window=False,
        tie_word_embeddings=False,
        vocab_size=151936,
    ),
    "microsoft/Phi-3-mini-4k-instruct": _phi3(
        intermediate_size=8192,
        num_attention_heads=32,
        num_key_value_heads=32,
        max_position_embeddings=4096,
        rope_scaling=None,
        sliding_window=2047,
        tie_word_embeddings=False,
        vocab_size=32064,
    ),
    "microsoft/Phi-3-mini-128k-instruct": _phi3(
        intermediate_size=8192,
        num_attention_heads=32,
        num_key_value_heads=32,
        max_position_embeddings=131072,
        rope_scaling=_LONGROPE,
        sliding_window=262144,
        tie_word_embeddings=False,
        vocab_size=32064,
    ),
    "microsoft/Phi-4-mini-instruct": _phi3(
        intermediate_size=8192,
        num_attention_heads=24,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        partial_rotary_factor=0.75,
        rope_scaling=_LONGROPE,
        sliding_window=262144,
        tie_word_embeddings=True,
        vocab_size=200064,
    ),
    "google/gemma-2-2b": _gemma2(**_shape(26, 2304, 9216, 8, 4), head_dim=256, query_pre_attn_scalar=256),
    "google/gemma-2-27b": _gemma2(**_shape(46, 4608, 36864, 32, 16), head_dim=128, query_pre_attn_scalar=144),
    "google/gemma-3-1b-it": _gemma3(**_shape(26, 1152, 6912, 4, 1), sliding_window_pattern=6, rope_scaling=None),
    "google/gemma-3-270m": _gemma3(
        **_shape(18, 640, 2048, 4, 1),
        layer_types=["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(18)],
        rope_scaling=None,
    ),
    "openai-community/gpt2": _gpt2(n_embd=768, n_head=12, n_layer=12),
    "openai-community/gpt2-xl": _gpt2(n_embd=1600, n_head=25, n_layer=48),
    "facebook/opt-125m": _opt(
        do_layer_norm_before=True,
        ffn_dim=3072,
        hidden_size=768,
        num_attention_heads=12,
        num_hidden_layers=12,
        word_embed_proj_dim=768,
    ),
    "facebook/opt-350m": _opt(
        do_layer_norm_before=False,
        ffn_dim=4096,
        hidden_size=1024,
        num_attention_heads=16,
        num_hidden_layers=24,
        word_embed_proj_dim=512,
    ),
    "tiiuae/falcon-7b": _falcon(
        hidden_size=4544, num_attention_heads=71, num_hidden_layers=32, multi_query=True, new_decoder_architecture=False
    ),
    "tiiuae/falcon-40b": _falcon(
        hidden_size=8192, num_attention_heads=128, num_hidden_layers=60, num_kv_heads=8, new_decoder_architecture=True
    ),
    "tiiuae/falcon-11B": _falcon(
        hidden_size=4096,
        ffn_hidden_size=16384,
        num_attention_heads=32,
        num_hidden_layers=60,
        num_kv_heads=8,
        num_ln_in_parallel_attn=1,
        new_decoder_architecture=True,
        max_position_embeddings=8192,
        rope_theta=500042.0,
        tie_word_embeddings=False,
    ),
    "google/gemma-2b": _gemma(**_shape(18, 2048, 16384, 8, 1), hidden_act="gelu"),
    "google/gemma-1.1-7b-it": _gemma(
        **_shape(28, 3072, 24576, 16, 16), hidden_act="gelu_pytorch_tanh", hidden_activation=None
    ),
    "EleutherAI/pythia-160m": _gpt_neox(**_plain_shape(12, 768, 3072, 12), hidden_act="gelu", vocab_size=50304),
    "EleutherAI/gpt-neox-20b": _gpt_neox(**_plain_shape(44, 6144, 24576, 64), hidden_act="gelu_fast", vocab_size=50432),
    "ibm-granite/granite-3.0-8b-base": _granite(
        **_shape(40, 4096, 12800, 32, 8),
        embedding_multiplier=12.0,
        logits_scaling=16.0,
        max_position_embeddings=4096,
        rope_theta=10000,
        vocab_size=49152,
    ),
    "ibm-granite/granite-3.3-2b-instruct": _granite(
        **_shape(40, 2048, 8192, 32, 8),
        attention_multiplier=0.015625,
        embedding_multiplier=12.0,
        logits_scaling=8.0,
        max_position_embeddings=131072,
        rope_theta=10000000.0,
        vocab_size=49159,
    ),
    "mistralai/Ministral-8B-Instruct-2410": _config(
        "MinistralForCausalLM",
        "ministral",
        **_shape(36, 4096, 12288, 32, 8),
        head_dim=128,
        hidden_act="silu",
        layer_types=["sliding_attention" if i % 4 else "full_attention" for i in range(36)],
        max_position_embeddings=32768,
        rms_norm_eps=1e-5,
        rope_theta=100000000.0,
        sliding_window=32768,
        tie_word_embeddings=False,
        vocab_size=131072,
    ),
    "allenai/OLMo-2-1124-7B": _olmo2(**_shape(32, 4096, 11008, 32, 32)),
    "allenai/OLMo-2-0325-32B": _olmo2(**_shape(64, 5120, 27648, 40, 8)),
    "Qwen/Qwen1.5-MoE-A2.7B": _config(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        **_shape(24, 2048, 5632, 16, 16),
        decoder_sparse_step=1,
        hidden_act="silu",
        max_position_embeddings=8192,
        max_window_layers=21,
        moe_intermediate_size=1408,
        norm_topk_prob=False,
        num_experts=60,
        num_experts_per_tok=4,
        rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        shared_expert_intermediate_size=5632,
        sliding_window=32768,
        use_sliding_window=False,
        tie_word_embeddings=False,
        vocab_size=151936,
    ),
    "HuggingFaceTB/SmolLM3-3B": _config(
        "SmolLM3ForCausalLM",
        "smollm3",
        **_shape(36, 2048, 11008, 16, 4),
        attention_bias=False,
        hidden_act="silu",
        layer_types=["full_attention"] * 36,
        max_position_embeddings=65536,
        max_window_layers=28,
        mlp_bias=False,
        no_rope_layer_interval=4,
        no_rope_layers=[int(i % 4 != 3) for i in range(36)],
        rms_norm_eps=1e-6,
        rope_scaling=None,
        rope_theta=5000000.0,
        sliding_window=None,
        use_sliding_window=False,
        vocab_size=128256,
    ),
    "stabilityai/stablelm-2-1_6b": _stablelm(**_shape(24, 2048, 5632, 32, 32), use_qkv_bias=True, vocab_size=100352),
    "stabilityai/stablelm-3b-4e1t": _stablelm(**_shape(32, 2560, 6912, 32, 32), use_qkv_bias=False, vocab_size=50304),
    "stabilityai/stablelm-2-12b": _stablelm(
        **_shape(40, 5120, 13824, 32, 8),
        qk_layernorm=True,
        use_parallel_residual=True,
        use_qkv_bias=False,
        vocab_size=100352,
    ),
    "bigcode/starcoder2-3b": _starcoder2(**_shape(30, 3072, 12288, 24, 2), rope_theta=999999.4420358813),
    "bigcode/starcoder2-15b": _starcoder2(**_shape(40, 6144, 24576, 48, 4), rope_theta=100000),
    "allenai/Olmo-3-7B-Instruct": _config(
        "Olmo3ForCausalLM",
        "olmo3",
        **_shape(32, 4096, 11008, 32, 32),
        attention_bias=False,
        hidden_act="silu",
        layer_types=["sliding_attention" if i % 4 != 3 else "full_attention" for i in range(32)],
        max_position_embeddings=65536,
        rms_norm_eps=1e-6,
        rope_theta=500000,
        rope_scaling={
            "rope_type": "yarn",
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
        },
        sliding_window=4096,
        tie_word_embeddings=False,
        vocab_size=100278,
    ),
    "ByteDance-Seed/Seed-OSS-36B-Instruct": _config(
        "SeedOssForCausalLM",
        "seed_oss",
        **_shape(64, 5120, 27648, 80, 8),
        attention_bias=True,
        attention_out_bias=False,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=524288,
        mlp_bias=False,
        rms_norm_eps=1e-6,
        rope_scaling={"rope_type": "default"},
        rope_theta=10000000.0,
        tie_word_embeddings=False,
        vocab_size=155136,
    ),
    "LGAI-EXAONE/EXAONE-4.0-1.2B": _exaone4(
        **_shape(30, 2048, 4096, 32, 8),
        head_dim=64,
        layer_types=["full_attention"] * 30,
        max_position_embeddings=65536,
        sliding_window=None,
        sliding_window_pattern=None,
        tie_word_embeddings=True,
    ),
    "LGAI-EXAONE/EXAONE-4.0-32B": _exaone4(
        **_shape(64, 5120, 27392, 40, 8),
        head_dim=128,
        layer_types=["sliding_attention" if i % 4 != 3 else "full_attention" for i in range(64)],
        max_position_embeddings=131072,
        sliding_window=4096,
        sliding_window_pattern="LLLG",
        tie_word_embeddings=False,
    ),
    "arcee-ai/AFM-4.5B": _config(
        "ArceeForCausalLM",
        "arcee",
        **_shape(36, 2560, 18432, 20, 4),
        attention_bias=False,
        head_dim=128,
        hidden_act="relu2",
        max_position_embeddings=65536,
        mlp_bias=False,
        rms_norm_eps=1e-5,
        rope_scaling={
            "rope_type": "yarn",
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 20.0,
            "mscale": 1.0,
            "original_max_position_embeddings": 4096,
        },
        rope_theta=10000.0,
        tie_word_embeddings=False,
        vocab_size=128004,
    ),
    "swiss-ai/Apertus-8B-Instruct-2509": _config(
        "ApertusForCausalLM",
        "apertus",
        **_shape(32, 4096, 21504, 32, 8),
        attention_bias=False,
        hidden_act="xielu",
        max_position_embeddings=65536,
        mlp_bias=False,
        qk_norm=True,
        rms_norm_eps=1e-5,
        rope_scaling={**_LLAMA3_ROPE, "factor": 8.0},
        rope_theta=12000000,
        tie_word_embeddings=False,
        vocab_size=131072,
    ),
    "nvidia/Minitron-4B-Base": _config(
        "NemotronForCausalLM",
        "nemotron",
        **_shape(32, 3072, 9216, 24, 8),
        attention_bias=False,
        head_dim=128,
        hidden_act="relu2",
        max_position_embeddings=4096,
        mlp_bias=False,
        norm_eps=1e-5,
        partial_rotary_factor=0.5,
        rope_theta=10000,
        tie_word_embeddings=False,
        vocab_size=256000,
    ),
    "baidu/ERNIE-4.5-0.3B-PT": _config(
        "Ernie4_5ForCausalLM",
        "ernie4_5",
        **_shape(18, 1024, 3072, 16, 2),
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        tie_word_embeddings=True,
        use_bias=False,
        vocab_size=103424,
    ),
    "zai-org/glm-4-9b-chat-hf": _glm("GlmForCausalLM", "glm", max_position_embeddings=131072),
    "zai-org/GLM-4-9B-0414": _glm("Glm4ForCausalLM", "glm4", max_position_embeddings=32768),
    "CohereLabs/c4ai-command-r-v01": _config(
        "CohereForCausalLM",
        "cohere",
        **_shape(40, 8192, 22528, 64, 64),
        hidden_act="silu",
        layer_norm_eps=1e-5,
        logit_scale=0.0625,
        max_position_embeddings=8192,
        rope_theta=8000000.0,
        use_qk_norm=False,
        vocab_size=256000,
    ),
    "CohereLabs/c4ai-command-r7b-12-2024": _config(
        "Cohere2ForCausalLM",
        "cohere2",
        **_shape(32, 4096, 14336, 32, 8),
        hidden_act="silu",
        layer_norm_eps=1e-5,
        logit_scale=0.25,
        max_position_embeddings=8192,
        rope_theta=50000,
        sliding_window=4096,
        sliding_window_pattern=4,
        vocab_size=256000,
    ),
    "mistralai/Ministral-3-8B-Base-2512": _config(
        "Ministral3ForCausalLM",
        "ministral3",
        **_shape(34, 4096, 14336, 32, 8),
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=262144,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 16.0,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16384,
        },
        tie_word_embeddings=False,
        vocab_size=131072,
    ),
    "tencent/Hunyuan-1.8B-Instruct": _config(
        "HunYuanDenseV1ForCausalLM",
        "hunyuan_v1_dense",
        **_shape(32, 2048, 6144, 16, 4),
        attention_bias=False,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=262144,
        rms_norm_eps=1e-5,
        rope_scaling={"type": "dynamic", "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0},
        rope_theta=10000.0,
        tie_word_embeddings=True,
        vocab_size=120818,
    ),
    "allenai/OLMoE-1B-7B-0924-Instruct": _config(
        "OlmoeForCausalLM",
        "olmoe",
        **_shape(16, 2048, 1024, 16, 16),
        clip_qkv=None,
        hidden_act="silu",
        max_position_embeddings=4096,
        norm_topk_prob=False,
        num_experts=64,
        num_experts_per_tok=8,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        vocab_size=50304,
    ),
    "ibm-granite/granite-3.1-3b-a800m-instruct": _config(
        "GraniteMoeForCausalLM",
        "granitemoe",
        **_shape(32, 1536, 512, 24, 8),
        attention_multiplier=0.015625,
        embedding_multiplier=12.0,
        hidden_act="silu",
        logits_scaling=6.0,
        max_position_embeddings=131072,
        num_experts_per_tok=8,
        num_local_experts=40,
        residual_multiplier=0.22,
        rms_norm_eps=1e-6,
        rope_theta=10000000.0,
        tie_word_embeddings=True,
        vocab_size=49155,
    ),
    "zai-org/GLM-4.5-Air": _config(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        **_shape(46, 4096, 10944, 96, 8),
        attention_bias=True,
        first_k_dense_replace=1,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=131072,
        moe_intermediate_size=1408,
        n_group=1,
        n_routed_experts=128,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=8,
        num_nextn_predict_layers=1,
        partial_rotary_factor=0.5,
        rms_norm_eps=1e-5,
        rope_theta=1000000,
        routed_scaling_factor=1.0,
        tie_word_embeddings=False,
        topk_group=1,
        use_qk_norm=False,
        vocab_size=151552,
    ),
    "google/gemma-3n-E4B": _config("Gemma3nForCausalLM", "gemma3n_text", **_gemma3n(35, 16384, 15)),
    "google/gemma-3n-E2B-it": _whole("Gemma3nForConditionalGeneration", "gemma3n", _gemma3n(30, 8192, 10)),
    "google/gemma-4-E2B": _config("Gemma4ForCausalLM", "gemma4_text", **_GEMMA4_E2B),
    "google/gemma-4-E2B-it": _whole("Gemma4ForConditionalGeneration", "gemma4", _GEMMA4_E2B, tie_word_embeddings=True),
    "google/gemma-4-26B-A4B-it": _whole(
        "Gemma4ForConditionalGeneration",
        "gemma4",
        _gemma4(
            30,
            6,
            attention_k_eq_v=True,
            enable_moe_block=True,
            hidden_size=2816,
            hidden_size_per_layer_input=0,
            intermediate_size=2112,
            moe_intermediate_size=704,
            num_attention_heads=16,
            num_experts=128,
            num_global_key_value_heads=2,
            num_hidden_layers=30,
            num_key_value_heads=8,
            num_kv_shared_layers=0,
            sliding_window=1024,
            top_k_experts=8,
            use_bidirectional_attention="vision",
        ),
        tie_word_embeddings=True,
    ),
    "meta-llama/Llama-4-Scout-17B-16E": _config("Llama4ForCausalLM", "llama4_text", **_LLAMA4_SCOUT),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": _whole("Llama4ForConditionalGeneration", "llama4", _LLAMA4_SCOUT),
    "microsoft/Phi-3.5-MoE-instruct": _config(
        "PhimoeForCausalLM",
        "phimoe",
        **_shape(32, 4096, 6400, 32, 8),
        attention_bias=True,
        hidden_act="silu",
        lm_head_bias=True,
        max_position_embeddings=131072,
        num_experts_per_tok=2,
        num_local_experts=16,
        original_max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        rope_scaling={
            "long_factor": [1.0 + i * i / 40 for i in range(64)],
            "long_mscale": 1.243163121016122,
            "original_max_position_embeddings": 4096,
            "short_factor": [1.0 + i / 50 for i in range(64)],
            "short_mscale": 1.243163121016122,
            "type": "longrope",
        },
        rope_theta=10000.0,
        router_jitter_noise=0.01,
        sliding_window=131072,
        tie_word_embeddings=False,
        vocab_size=32064,
    ),
    "openai/gpt-oss-20b": _config(
        "GptOssForCausalLM",
        "gpt_oss",
        **_shape(24, 2880, 2880, 64, 8),
        attention_bias=True,
        head_dim=64,
        hidden_act="silu",
        initial_context_length=4096,
        layer_types=["sliding_attention", "full_attention"] * 12,
        max_position_embeddings=131072,
        num_experts_per_tok=4,
        num_local_experts=32,
        quantization_config={"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"},
        rms_norm_eps=1e-5,
        rope_scaling={
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        rope_theta=150000,
        sliding_window=128,
        swiglu_limit=7.0,
        tie_word_embeddings=False,
        vocab_size=201088,
    ),
    "MiniMaxAI/MiniMax-M2": _config(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        **_shape(62, 3072, 1536, 48, 8),
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=196608,
        num_experts_per_tok=8,
        num_local_experts=256,
        rms_norm_eps=1e-6,
        rope_theta=5000000,
        rotary_dim=64,
        tie_word_embeddings=False,
        vocab_size=200064,
    ),
    "baidu/ERNIE-4.5-21B-A3B-PT": _config(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        **_shape(28, 2560, 12288, 20, 4),
        hidden_act="silu",
        max_position_embeddings=131072,
        moe_intermediate_size=1536,
        moe_k=6,
        moe_layer_end_index=27,
        moe_layer_interval=1,
        moe_layer_start_index=1,
        moe_num_experts=64,
        moe_num_shared_experts=2,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        tie_word_embeddings=True,
        use_bias=False,
        vocab_size=103424,
    ),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": _config(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        **_shape(27, 2048, 10944, 16, 16),
        **_latent(None, 128, 128),
        first_k_dense_replace=1,
        max_position_embeddings=163840,
        moe_intermediate_size=1408,
        n_group=1,
        n_routed_experts=64,
        n_shared_experts=2,
        norm_topk_prob=False,
        num_experts_per_tok=6,
        rms_norm_eps=1e-6,
        rope_scaling=_deepseek_yarn(40, 0.707),
        rope_theta=10000,
        routed_scaling_factor=1.0,
        scoring_func="softmax",
        topk_group=1,
        topk_method="greedy",
        vocab_size=102400,
    ),
    "deepseek-ai/DeepSeek-V2-Chat": _config(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        **_shape(60, 5120, 12288, 128, 128),
        **_latent(1536, 128, 128),
        first_k_dense_replace=1,
        max_position_embeddings=163840,
        moe_intermediate_size=1536,
        n_group=8,
        n_routed_experts=160,
        n_shared_experts=2,
        norm_topk_prob=False,
        num_experts_per_tok=6,
        rms_norm_eps=1e-6,
        rope_scaling=_deepseek_yarn(40, 0.707),
        rope_theta=10000,
        routed_scaling_factor=16.0,
        scoring_func="softmax",
        topk_group=3,
        topk_method="group_limited_greedy",
        vocab_size=102400,
    ),
    "deepseek-ai/DeepSeek-R1": _config(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        **_shape(61, 7168, 18432, 128, 128),
        **_latent(1536, 128, 128),
        first_k_dense_replace=3,
        max_position_embeddings=163840,
        moe_intermediate_size=2048,
        n_group=8,
        n_routed_experts=256,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=8,
        num_nextn_predict_layers=1,
        rms_norm_eps=1e-6,
        rope_scaling=_deepseek_yarn(40, 1.0),
        rope_theta=10000,
        routed_scaling_factor=2.5,
        scoring_func="sigmoid",
        topk_group=4,
        topk_method="noaux_tc",
        vocab_size=129280,
    ),
    "moonshotai/Kimi-K2-Instruct": _config(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",  # published as kimi_k2, which transformers does not know
        **_shape(61, 7168, 18432, 64, 64),
        **_latent(1536, 128, 128),
        first_k_dense_replace=1,
        max_position_embeddings=131072,
        moe_intermediate_size=2048,
        n_group=1,
        n_routed_experts=384,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=8,
        num_nextn_predict_layers=0,
        rms_norm_eps=1e-6,
        rope_scaling={**_deepseek_yarn(32, 1.0), "beta_fast": 1.0},
        rope_theta=50000.0,
        routed_scaling_factor=2.827,
        scoring_func="sigmoid",
        topk_group=1,
        topk_method="noaux_tc",
        vocab_size=163840,
    ),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": _config(
        "KimiLinearForCausalLM",
        "kimi_linear",
        **_shape(27, 2304, 9216, 32, 32),
        **_latent(None, 128, 128),
        first_k_dense_replace=1,
        head_dim=72,
        linear_attn_config={
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "head_dim": 128,
            "kda_layers": [layer for layer in range(1, 27) if layer % 4],
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
        mla_use_nope=True,
        model_max_length=1048576,
        moe_intermediate_size=1024,
        moe_layer_freq=1,
        moe_renormalize=True,
        moe_router_activation_func="sigmoid",
        num_expert_group=1,
        num_experts=256,
        num_experts_per_token=8,
        num_nextn_predict_layers=0,
        num_shared_experts=1,
        rms_norm_eps=1e-5,
        routed_scaling_factor=2.446,
        topk_group=1,
        use_grouped_topk=True,
        vocab_size=163840,
    ),
    "zai-org/GLM-4.7-Flash": _config(
        "Glm4MoeLiteForCausalLM",
        "glm4_moe_lite",
        **_shape(47, 2048, 10240, 20, 20),
        **_latent(768, 192, 256),
        first_k_dense_replace=1,
        max_position_embeddings=202752,
        moe_intermediate_size=1536,
        n_group=1,
        n_routed_experts=64,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=4,
        num_nextn_predict_layers=1,
        partial_rotary_factor=1.0,
        rms_norm_eps=1e-5,
        rope_theta=1000000,
        routed_scaling_factor=1.8,
        topk_group=1,
        topk_method="noaux_tc",
        vocab_size=154880,
    ),
    "rednote-hilab/dots.llm1.inst": _config(
        "Dots1ForCausalLM",
        "dots1",
        **_shape(62, 4096, 10944, 32, 32),
        attention_bias=False,
        first_k_dense_replace=1,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=32768,
        max_window_layers=62,
        moe_intermediate_size=1408,
        n_group=1,
        n_routed_experts=128,
        n_shared_experts=2,
        norm_topk_prob=True,
        num_experts_per_tok=6,
        rms_norm_eps=1e-5,
        rope_theta=10000000,
        routed_scaling_factor=2.5,
        sliding_window=None,
        tie_word_embeddings=False,
        topk_group=1,
        vocab_size=152064,
    ),
    "tencent/Hunyuan-A13B-Instruct": _config(
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        **_shape(32, 4096, 3072, 32, 8),
        attention_bias=False,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=32768,
        moe_intermediate_size=[3072] * 32,
        moe_topk=[8] * 32,
        num_experts=64,
        rms_norm_eps=1e-5,
        rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
        rope_theta=10000.0,
        tie_word_embeddings=True,
        vocab_size=128167,
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": _config(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        **_shape(48, 2048, 5120, 16, 2),
        attention_bias=False,
        decoder_sparse_step=1,
        full_attention_interval=4,
        head_dim=256,
        hidden_act="silu",
        linear_conv_kernel_dim=4,
        linear_key_head_dim=128,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_value_head_dim=128,
        max_position_embeddings=262144,
        mlp_only_layers=[],
        moe_intermediate_size=512,
        norm_topk_prob=True,
        num_experts=512,
        num_experts_per_tok=10,
        partial_rotary_factor=0.25,
        rms_norm_eps=1e-6,
        rope_scaling=None,
        rope_theta=10000000,
        shared_expert_intermediate_size=512,
        tie_word_embeddings=False,
        vocab_size=151936,
    ),
    "Qwen/Qwen3.5-0.8B": _qwen3_5(
        "Qwen3_5ForConditionalGeneration",
        "qwen3_5",
        True,
        **_shape(24, 1024, 3584, 8, 2),
        linear_num_value_heads=16,
    ),
    "Qwen/Qwen3.5-27B, text alone": _qwen3_5(
        "Qwen3_5ForCausalLM", "qwen3_5", False, **_shape(64, 5120, 17408, 24, 4), linear_num_value_heads=48
    ),
    "Qwen/Qwen3.5-35B-A3B": _qwen3_5("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", False, **_QWEN3_5_MOE),
    "Qwen/Qwen3.5-35B-A3B, text alone": _qwen3_5("Qwen3_5MoeForCausalLM", "qwen3_5_moe", False, **_QWEN3_5_MOE),
    "ibm-granite/granite-4.0-h-tiny": _granite4(
        *(40, 1536, 512, 12, 4),
        attention_multiplier=0.0078125,
        layer_types=_kinds(40, 5, 15, 25, 35),
        logits_scaling=6,
        mamba_n_heads=48,
        num_experts_per_tok=6,
        num_local_experts=64,
        shared_intermediate_size=1024,
    ),
    "ibm-granite/granite-4.0-h-350m": _granite4(
        *(32, 768, 2048, 12, 4),
        attention_multiplier=0.015625,
        layer_types=_kinds(32, 10, 13, 17, 27),
        logits_scaling=3,
        mamba_n_heads=24,
        num_experts_per_tok=0,
        num_local_experts=0,
        shared_intermediate_size=2048,
    ),
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": _nemotron_h(
        "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        hidden_size=4480,
        intermediate_size=15680,
        mamba_head_dim=80,
        mamba_num_heads=128,
        max_position_embeddings=131072,
        num_attention_heads=40,
        num_key_value_heads=8,
    ),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": _nemotron_h(
        "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        hidden_size=2688,
        intermediate_size=1856,
        mamba_head_dim=64,
        mamba_num_heads=64,
        max_position_embeddings=262144,
        moe_intermediate_size=1856,
        moe_shared_expert_intermediate_size=3712,
        n_group=1,
        n_routed_experts=128,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_attention_heads=32,
        num_experts_per_tok=6,
        num_key_value_heads=2,
        routed_scaling_factor=2.5,
        topk_group=1,
    ),
    "tiiuae/Falcon-H1-1.5B-Instruct": _config(
        "FalconH1ForCausalLM",
        "falcon_h1",
        **_shape(24, 2048, 4096, 8, 2),
        attention_bias=False,
        attention_in_multiplier=1.0,
        attention_out_multiplier=0.6,
        embedding_multiplier=5.656854249492381,
        head_dim=128,
        hidden_act="silu",
        key_multiplier=0.39,
        lm_head_multiplier=0.0195,
        mamba_chunk_size=256,
        mamba_conv_bias=True,
        mamba_d_conv=4,
        mamba_d_head=64,
        mamba_d_ssm=3072,
        mamba_d_state=256,
        mamba_expand=2,
        mamba_n_groups=1,
        mamba_n_heads=48,
        mamba_norm_before_gate=False,
        mamba_proj_bias=False,
        mamba_rms_norm=False,
        max_position_embeddings=131072,
        mlp_bias=False,
        mlp_multipliers=[0.88, 0.2],
        projectors_bias=False,
        rms_norm_eps=1e-5,
        rope_scaling=None,
        rope_theta=100000000000.0,
        ssm_in_multiplier=1.25,
        ssm_multipliers=[0.35, 0.25, 0.35, 0.5, 0.35],
        ssm_out_multiplier=0.2,
        tie_word_embeddings=False,
        vocab_size=65537,
    ),
    "ibm-ai-platform/Bamba-9B-v2": _config(
        "BambaForCausalLM",
        "bamba",
        **_shape(32, 4096, 14336, 32, 8),
        attention_bias=False,
        attn_layer_indices=[9, 18, 27],
        attn_rotary_emb=64,
        hidden_act="silu",
        mamba_chunk_size=256,
        mamba_conv_bias=True,
        mamba_d_conv=4,
        mamba_d_head=64,
        mamba_d_state=128,
        mamba_expand=2,
        mamba_n_groups=1,
        mamba_n_heads=128,
        mamba_proj_bias=False,
        max_position_embeddings=262144,
        mlp_bias=False,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        vocab_size=128256,
    ),
    "mistralai/Mamba-Codestral-7B-v0.1": _config(
        "Mamba2ForCausalLM",
        "mamba2",
        chunk_size=256,
        conv_kernel=4,
        expand=2,
        head_dim=64,
        hidden_act="silu",
        hidden_size=4096,
        layer_norm_epsilon=1e-5,
        n_groups=8,
        num_heads=128,
        num_hidden_layers=64,
        residual_in_fp32=True,
        state_size=128,
        tie_word_embeddings=False,
        time_step_limit=[0.0, float("inf")],
        use_bias=False,
        use_conv_bias=True,
        vocab_size=32768,
    ),
    "LiquidAI/LFM2-1.2B": _config(
        "Lfm2ForCausalLM",
        "lfm2",
        block_auto_adjust_ff_dim=True,
        block_ff_dim=12288,
        block_ffn_dim_multiplier=1.0,
        block_multiple_of=256,
        conv_L_cache=3,
        conv_bias=False,
        full_attn_idxs=[2, 5, 8, 10, 12, 14],
        hidden_size=2048,
        max_position_embeddings=128000,
        norm_eps=1e-5,
        num_attention_heads=32,
        num_hidden_layers=16,
        num_key_value_heads=8,
        rope_theta=1000000.0,
        tie_embedding=True,
        vocab_size=65536,
    ),
    "LiquidAI/LFM2-8B-A1B": _config(
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        **_shape(24, 2048, 7168, 32, 8),
        conv_L_cache=3,
        conv_bias=False,
        layer_types=["full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)],
        max_position_embeddings=128000,
        moe_intermediate_size=1792,
        norm_eps=1e-5,
        norm_topk_prob=True,
        num_dense_layers=2,
        num_experts=32,
        num_experts_per_tok=4,
        rope_theta=1000000.0,
        routed_scaling_factor=1.0,
        use_expert_bias=True,
        vocab_size=65536,
    ),
}
