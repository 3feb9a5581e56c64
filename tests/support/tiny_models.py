"""Small random models, made with transformers' own config classes, and transformers' outputs of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    ApertusConfig,
    ArceeConfig,
    AutoModelForCausalLM,
    BambaConfig,
    Cohere2Config,
    CohereConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Dots1Config,
    Ernie4_5_MoeConfig,
    Ernie4_5Config,
    Exaone4Config,
    FalconConfig,
    FalconH1Config,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GemmaConfig,
    Glm4Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    GlmConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    GraniteMoeHybridConfig,
    HunYuanDenseV1Config,
    HunYuanMoEV1Config,
    KimiLinearConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    Llama4TextConfig,
    LlamaConfig,
    Mamba2Config,
    MiniMaxM2Config,
    Ministral3Config,
    MinistralConfig,
    MistralConfig,
    MixtralConfig,
    NemotronConfig,
    NemotronHConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoeConfig,
    OPTConfig,
    Phi3Config,
    PhimoeConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SeedOssConfig,
    SmolLM3Config,
    StableLmConfig,
    Starcoder2Config,
)

VOCAB_SIZE = 271  # not a multiple of 64, like real vocabularies
MAX_LEN = 512

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.2,  # wide enough that logits are far apart compared with float32 rounding
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}

# Equal settings under the names of families before Llama.
_TOKENS = {name: _SHAPE[name] for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
_OPT: dict[str, Any] = {
    **_TOKENS,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_LEN,
    "init_std": 0.2,
}
_FALCON: dict[str, Any] = {
    **_TOKENS,
    "hidden_size": 64,
    "ffn_hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.2,
}
_GPT2: dict[str, Any] = {
    **_TOKENS,
    "n_embd": 64,
    "n_inner": 96,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": MAX_LEN,
    "initializer_range": 0.4,
}
_QKV = ("q_proj", "k_proj", "v_proj", "c_attn", "query_key_value")
_PAIRS = [1.0, 1.1, 1.3, 1.7, 2.2, 3.0]  # longrope's divisors for heads of which 12 dimensions turn

_LATENT: dict[str, Any] = {
    **_SHAPE,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "routed_scaling_factor": 1.5,
}
_LATENT_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
    "original_max_position_embeddings": 128,
}

CONFIGS: dict[str, PretrainedConfig] = {
    "llama-mha": LlamaConfig(**_SHAPE, num_key_value_heads=4, tie_word_embeddings=False),
    "llama-gqa-tied": LlamaConfig(**_SHAPE, num_key_value_heads=2, tie_word_embeddings=True),
    "llama-mqa-head24": LlamaConfig(**_SHAPE, num_key_value_heads=1, head_dim=24, tie_word_embeddings=False),
    "llama3-rope": LlamaConfig(
        **_SHAPE,
        num_key_value_heads=2,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "mistral-window": MistralConfig(**_SHAPE, num_key_value_heads=2, head_dim=16, sliding_window=37),
    "qwen2": Qwen2Config(**_SHAPE, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**_SHAPE, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True),
    "llama-yarn": LlamaConfig(
        **_SHAPE,
        num_key_value_heads=2,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ),
    "phi3-window": Phi3Config(**_SHAPE, num_key_value_heads=2, sliding_window=37),
    # The original length is the longest, so the short factors hold for all lengths.
    "phi3-longrope": Phi3Config(
        **_SHAPE,
        num_key_value_heads=4,
        original_max_position_embeddings=MAX_LEN,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "partial_rotary_factor": 0.75,
            "short_factor": _PAIRS,
            "long_factor": [9.0 * x for x in _PAIRS],
        },
    ),
    "gemma2": Gemma2Config(
        **{**_SHAPE, "hidden_size": 80},  # bfloat16 changes its square root
        num_key_value_heads=2,
        head_dim=24,
        query_pre_attn_scalar=40,
        sliding_window=37,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=5.0,
    ),
    "gemma3": Gemma3TextConfig(
        **{**_SHAPE, "hidden_size": 80, "num_hidden_layers": 3},
        num_key_value_heads=1,
        head_dim=24,
        query_pre_attn_scalar=10,
        sliding_window=37,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "gemma3n": Gemma3nTextConfig(
        **{**_SHAPE, "hidden_size": 80, "num_hidden_layers": 6, "intermediate_size": [96, 96, 80, 80, 80, 80]},
        num_key_value_heads=2,
        head_dim=24,
        sliding_window=37,
        layer_types=["sliding_attention", "full_attention"] * 3,
        vocab_size_per_layer_input=VOCAB_SIZE - 8,
        hidden_size_per_layer_input=12,
        num_kv_shared_layers=2,
        laurel_rank=8,
        activation_sparsity_pattern=[0.8, 0.5, 0.0, 0.0, 0.0, 0.0],
        final_logit_softcapping=5.0,
    ),
    "gemma4": Gemma4TextConfig(
        **{**_SHAPE, "hidden_size": 80, "num_hidden_layers": 6},
        num_key_value_heads=2,
        head_dim=16,
        global_head_dim=24,
        sliding_window=37,
        layer_types=["sliding_attention", "full_attention"] * 3,
        vocab_size_per_layer_input=VOCAB_SIZE,
        hidden_size_per_layer_input=12,
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
        final_logit_softcapping=5.0,
    ),
    "gemma4-moe": Gemma4TextConfig(
        **{**_SHAPE, "num_hidden_layers": 3},
        num_key_value_heads=2,
        head_dim=24,
        global_head_dim=40,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=37,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=7,
        top_k_experts=2,
        moe_intermediate_size=48,
    ),
    "gpt2": GPT2Config(**_GPT2),
    "gpt2-untied": GPT2Config(
        **_GPT2, tie_word_embeddings=False, scale_attn_by_inverse_layer_idx=True, activation_function="gelu"
    ),
    "opt": OPTConfig(**_OPT),
    "opt-post-norm": OPTConfig(**{**_OPT, "init_std": 0.3}, do_layer_norm_before=False, word_embed_proj_dim=40),
    "opt-no-bias": OPTConfig(
        **_OPT,
        enable_bias=False,
        _remove_final_layer_norm=True,
        layer_norm_elementwise_affine=False,
        tie_word_embeddings=False,
        activation_function="gelu",
    ),
    "falcon-7b": FalconConfig(**_FALCON),
    "falcon-40b": FalconConfig(**_FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=True),
    "falcon-11b": FalconConfig(
        **_FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, tie_word_embeddings=False
    ),
    "falcon-sequential": FalconConfig(**_FALCON, multi_query=False, parallel_attn=False),
    "mixtral-window": MixtralConfig(**_SHAPE, num_key_value_heads=2, num_local_experts=5, sliding_window=37),
    "qwen3-moe": Qwen3MoeConfig(
        **{**_SHAPE, "num_hidden_layers": 3},
        num_key_value_heads=2,
        head_dim=24,
        num_experts=7,
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        norm_topk_prob=True,
        mlp_only_layers=[1],
    ),
    "gemma": GemmaConfig(**{**_SHAPE, "hidden_size": 80}, num_key_value_heads=1, head_dim=24),
    "gpt-neox": GPTNeoXConfig(**_SHAPE),
    "gpt-neox-sequential": GPTNeoXConfig(
        **_SHAPE,
        use_parallel_residual=False,
        attention_bias=False,
        hidden_act="gelu_fast",
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
    ),
    "granite": GraniteConfig(
        **_SHAPE,
        num_key_value_heads=2,
        embedding_multiplier=7.0,
        attention_multiplier=0.15,
        residual_multiplier=0.4,
        logits_scaling=3.0,
        tie_word_embeddings=True,
    ),
    "granite-bias": GraniteConfig(
        **_SHAPE, num_key_value_heads=4, attention_bias=True, mlp_bias=True, attention_multiplier=0.25
    ),
    "ministral-window": MinistralConfig(
        **{**_SHAPE, "num_hidden_layers": 3},
        num_key_value_heads=2,
        head_dim=24,
        sliding_window=37,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
    ),
    "olmo2": Olmo2Config(**_SHAPE, num_key_value_heads=2),
    "olmo2-bias-tied": Olmo2Config(**_SHAPE, num_key_value_heads=4, attention_bias=True, tie_word_embeddings=True),
    "qwen2-moe": Qwen2MoeConfig(
        **{**_SHAPE, "num_hidden_layers": 4},
        num_key_value_heads=2,
        num_experts=7,
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=56,
        decoder_sparse_step=2,
        use_sliding_window=True,
        sliding_window=37,
        max_window_layers=3,
    ),
    "qwen2-moe-no-bias": Qwen2MoeConfig(
        **_SHAPE,
        num_key_value_heads=4,
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=24,
        norm_topk_prob=True,
        qkv_bias=False,
        mlp_only_layers=[0],
        tie_word_embeddings=True,
    ),
    "smollm3": SmolLM3Config(**{**_SHAPE, "num_hidden_layers": 4}, num_key_value_heads=2, no_rope_layer_interval=2),
    "smollm3-window": SmolLM3Config(
        **{**_SHAPE, "num_hidden_layers": 3},
        num_key_value_heads=1,
        no_rope_layers=[0, 1, 0],
        use_sliding_window=True,
        sliding_window=37,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    ),
    "stablelm": StableLmConfig(**_SHAPE, num_key_value_heads=4, use_qkv_bias=True),
    "stablelm-parallel": StableLmConfig(
        **_SHAPE,
        num_key_value_heads=2,
        qk_layernorm=True,
        use_parallel_residual=True,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
    ),
    "olmo3": Olmo3Config(
        **{**_SHAPE, "num_hidden_layers": 4},
        num_key_value_heads=2,
        sliding_window=37,
        rope_parameters={
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 5e5,
                "factor": 8.0,
                "attention_factor": 1.2,
                "original_max_position_embeddings": 128,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
        },
    ),
    "seed-oss": SeedOssConfig(**_SHAPE, num_key_value_heads=2, head_dim=24, attention_out_bias=True),
    "exaone4-window": Exaone4Config(
        **{**_SHAPE, "num_hidden_layers": 4}, num_key_value_heads=2, sliding_window=37, sliding_window_pattern=2
    ),
    "exaone4": Exaone4Config(**_SHAPE, num_key_value_heads=1, sliding_window=None, layer_types=["full_attention"] * 2),
    "arcee": ArceeConfig(**_SHAPE, num_key_value_heads=2, mlp_bias=True),
    "apertus": ApertusConfig(**_SHAPE, num_key_value_heads=2),
    "nemotron": NemotronConfig(**_SHAPE, num_key_value_heads=2, attention_bias=True),
    "ernie4_5": Ernie4_5Config(**_SHAPE, num_key_value_heads=2, head_dim=24),
    "ernie4_5-bias": Ernie4_5Config(
        **_SHAPE, num_key_value_heads=1, head_dim=16, use_bias=True, tie_word_embeddings=False
    ),
    "glm": GlmConfig(**_SHAPE, num_key_value_heads=2, head_dim=24),
    "glm4": Glm4Config(**_SHAPE, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True),
    "cohere": CohereConfig(**_SHAPE, num_key_value_heads=4, logit_scale=0.5),
    "cohere-norms": CohereConfig(**_SHAPE, num_key_value_heads=2, use_qk_norm=True, attention_bias=True),
    "cohere2": Cohere2Config(
        **{**_SHAPE, "num_hidden_layers": 5}, num_key_value_heads=2, logit_scale=0.5, sliding_window=37
    ),
    "ministral3": Ministral3Config(
        **_SHAPE,
        num_key_value_heads=2,
        head_dim=24,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "llama_4_scaling_beta": 0.3,
        },
    ),
    "hunyuan-dense": HunYuanDenseV1Config(
        **_SHAPE,
        num_key_value_heads=2,
        head_dim=24,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1000.0, "alpha": 50.0, "factor": 1.0},
    ),
    "olmoe": OlmoeConfig(**_SHAPE, num_key_value_heads=2, num_experts=7, num_experts_per_tok=3),
    "granite-moe": GraniteMoeConfig(
        **_SHAPE,
        num_key_value_heads=2,
        num_local_experts=5,
        num_experts_per_tok=2,
        embedding_multiplier=7.0,
        attention_multiplier=0.15,
        residual_multiplier=0.4,
        logits_scaling=3.0,
        tie_word_embeddings=True,
    ),
    "glm4-moe": Glm4MoeConfig(
        **{**_SHAPE, "num_hidden_layers": 3},
        num_key_value_heads=2,
        head_dim=24,
        n_routed_experts=8,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        moe_intermediate_size=40,
        routed_scaling_factor=1.5,
        use_qk_norm=True,
        attention_bias=True,
    ),
    "gpt-oss": GptOssConfig(
        **{**_SHAPE, "num_hidden_layers": 3},
        num_key_value_heads=2,
        head_dim=24,
        num_local_experts=6,
        num_experts_per_tok=2,
        sliding_window=16,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 128,
        },
    ),
    "deepseek-v2": DeepseekV2Config(
        **_LATENT,
        q_lora_rank=None,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        n_shared_experts=2,
        first_k_dense_replace=1,
        rope_parameters=_LATENT_YARN,
    ),
    "deepseek-v3": DeepseekV3Config(
        **_LATENT,
        q_lora_rank=16,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=2,
        attention_bias=True,
        rope_parameters={**_LATENT_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    ),
    "glm4-moe-lite": Glm4MoeLiteConfig(
        **{**_LATENT, "n_routed_experts": 7},
        q_lora_rank=16,
        rope_interleave=False,
        rope_parameters={**_LATENT_YARN, "mscale": 1.2},
    ),
    # Chunks of 32 positions, and queries that grow every 64.
    "llama4": Llama4TextConfig(
        **{**_SHAPE, "num_hidden_layers": 4},
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size_mlp=80,
        num_local_experts=7,
        interleave_moe_layer_step=2,
        attention_chunk_size=32,
        floor_scale=64,
        attn_scale=0.3,
    ),
    "llama4-whole": Llama4TextConfig(
        **{**_SHAPE, "num_hidden_layers": 4},
        num_key_value_heads=1,
        head_dim=24,
        intermediate_size_mlp=80,
        num_local_experts=6,
        num_experts_per_tok=2,
        tie_word_embeddings=True,
    ),
    "phimoe": PhimoeConfig(
        **_SHAPE,
        num_key_value_heads=2,
        num_local_experts=6,
        attention_bias=True,
        lm_head_bias=True,
        sliding_window=37,
    ),
    "minimax-m2": MiniMaxM2Config(
        **_SHAPE, num_key_value_heads=2, head_dim=24, rotary_dim=12, num_local_experts=6, num_experts_per_tok=2
    ),
    "ernie4_5-moe": Ernie4_5_MoeConfig(
        **{**_SHAPE, "num_hidden_layers": 3},
        num_key_value_heads=2,
        moe_num_experts=6,
        moe_k=2,
        moe_intermediate_size=40,
        moe_num_shared_experts=2,
    ),
    "dots1": Dots1Config(
        **{**_SHAPE, "num_hidden_layers": 3},
        num_key_value_heads=2,
        n_routed_experts=6,
        n_shared_experts=2,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        moe_intermediate_size=40,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        sliding_window=37,
        max_window_layers=2,
    ),
    "hunyuan-moe": HunYuanMoEV1Config(
        **_SHAPE,
        num_key_value_heads=2,
        head_dim=24,
        num_experts=5,
        moe_topk=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    ),
    "starcoder2-window": Starcoder2Config(**_SHAPE, num_key_value_heads=2, sliding_window=37),
    "starcoder2-no-bias": Starcoder2Config(
        **_SHAPE, num_key_value_heads=1, use_bias=False, tie_word_embeddings=False, hidden_act="gelu"
    ),
}

_DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
}
_MAMBA: dict[str, Any] = {
    "num_key_value_heads": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 32,
}
_NEMOTRON_H: dict[str, Any] = {
    **{name: value for name, value in _SHAPE.items() if name != "num_hidden_layers"},
    "num_key_value_heads": 2,
    "head_dim": 24,
    "ssm_state_size": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "chunk_size": 32,
    "time_step_min": 1e-9,  # transformers limits time steps by it in prompts, and not in answers
}
_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 7.0,
    "attention_multiplier": 0.15,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}
# Models with recurrent states in some layers.
HYBRIDS: dict[str, PretrainedConfig] = {
    "qwen3.5": Qwen3_5TextConfig(**_SHAPE | _DELTA),
    "qwen3.5-moe": Qwen3_5MoeTextConfig(**_SHAPE | _DELTA | _EXPERTS, tie_word_embeddings=True),
    "lfm2": Lfm2Config(
        **_SHAPE | {"num_hidden_layers": 4},
        num_key_value_heads=2,
        layer_types=["conv", "full_attention", "conv", "conv"],
        block_multiple_of=32,
    ),
    "lfm2-moe": Lfm2MoeConfig(
        **_SHAPE | {"num_hidden_layers": 4},
        num_key_value_heads=2,
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        num_dense_layers=1,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        routed_scaling_factor=1.5,
    ),
    "qwen3-next": Qwen3NextConfig(**_SHAPE | _DELTA | _EXPERTS, mlp_only_layers=[1]),
    "kimi-linear": KimiLinearConfig(
        **{name: value for name, value in _LATENT.items() if name != "n_routed_experts"},
        q_lora_rank=None,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        mlp_layer_types=["dense", "sparse", "sparse"],
        linear_head_dim=16,
        linear_num_heads=4,
        num_local_experts=6,
        n_group=3,
        topk_group=2,
    ),
    "granite-hybrid": GraniteMoeHybridConfig(
        **{**_SHAPE, **_MAMBA, **_GRANITE, "num_hidden_layers": 4},
        layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        num_local_experts=5,
        num_experts_per_tok=2,
        shared_intermediate_size=56,
        tie_word_embeddings=True,
    ),
    "granite-hybrid-dense": GraniteMoeHybridConfig(
        **{**_SHAPE, **_MAMBA, **_GRANITE, "num_hidden_layers": 3},
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        num_local_experts=0,
        shared_intermediate_size=96,
        position_embedding_type="rope",
    ),
    "nemotron-h": NemotronHConfig(
        **_NEMOTRON_H, layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"]
    ),
    "nemotron-h-moe": NemotronHConfig(
        **_NEMOTRON_H,
        layers_block_type=["linear_attention", "moe", "full_attention", "moe"],
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        moe_shared_expert_intermediate_size=56,
        moe_latent_size=32,
        routed_scaling_factor=1.5,
    ),
    "falcon-h1": FalconH1Config(
        **_SHAPE | _MAMBA,
        mamba_d_ssm=128,
        head_dim=24,
        mlp_multipliers=[0.7, 0.6],
        ssm_multipliers=[0.5, 0.8, 1.2, 0.9, 0.6],
        key_multiplier=0.4,
        attention_out_multiplier=0.8,
        attention_in_multiplier=1.3,
        ssm_in_multiplier=1.1,
        ssm_out_multiplier=0.7,
        embedding_multiplier=3.0,
        lm_head_multiplier=0.3,
    ),
    "falcon-h1-norm": FalconH1Config(
        **{**_SHAPE, **_MAMBA, "mamba_d_head": 12},
        mamba_d_ssm=96,
        mamba_rms_norm=True,
        mamba_norm_before_gate=False,
        tie_word_embeddings=True,
    ),
    "bamba": BambaConfig(**{**_SHAPE, **_MAMBA, "num_hidden_layers": 3}, attn_layer_indices=[1]),
    "mamba2": Mamba2Config(
        **_TOKENS,
        hidden_size=64,
        num_hidden_layers=3,
        num_heads=8,
        head_dim=16,
        state_size=16,
        n_groups=2,
        initializer_range=0.2,
        chunk_size=32,
    ),
}


# Models whose family, or nearest family, is tested at full length by another.
VARIANTS = {
    "llama-yarn",
    "phi3-longrope",
    "gpt2-untied",
    "opt-no-bias",
    "falcon-40b",
    "falcon-11b",
    "falcon-sequential",
    "gemma",
    "gpt-neox",
    "gpt-neox-sequential",
    "granite",
    "granite-bias",
    "ministral-window",
    "olmo2",
    "olmo2-bias-tied",
    "qwen2-moe",
    "qwen2-moe-no-bias",
    "smollm3",
    "smollm3-window",
    "stablelm",
    "stablelm-parallel",
    "starcoder2-window",
    "starcoder2-no-bias",
    "olmo3",
    "seed-oss",
    "exaone4-window",
    "exaone4",
    "arcee",
    "apertus",
    "nemotron",
    "ernie4_5",
    "ernie4_5-bias",
    "glm",
    "glm4",
    "cohere",
    "cohere-norms",
    "cohere2",
    "ministral3",
    "hunyuan-dense",
    "olmoe",
    "granite-moe",
    "glm4-moe",
    "deepseek-v2",
    "glm4-moe-lite",
    "minimax-m2",
    "ernie4_5-moe",
    "dots1",
    "hunyuan-moe",
    "gemma4-moe",
    "llama4-whole",
    "phimoe",
    "lfm2-moe",
    "qwen3.5-moe",
    "qwen3-next",
    "granite-hybrid-dense",
    "nemotron-h-moe",
    "falcon-h1-norm",
    "bamba",
    "mamba2",
}


def make_model(name: str) -> PreTrainedModel:
    """Return a seeded random model in float32 of CONFIGS or HYBRIDS, with biases and norms that are not trivial."""
    torch.manual_seed(1234)
    model = AutoModelForCausalLM.from_config((CONFIGS | HYBRIDS)[name], dtype=torch.float32).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            is_norm = "norm" in key or "ln_" in key
            if key.endswith("bias"):
                # Large only if the rotation makes it depend on the position: otherwise a bias would decide all outputs.
                parameter.normal_(0.0, 0.5 if any(part in key for part in _QKV) else 0.1)
            elif is_norm:
                parameter.uniform_(0.5, 1.5)
                if name.startswith(("gemma4", "gemma3n")):  # begin with large embeddings, too
                    parameter.add_(1.0 if "post_" in key and name == "gemma3n" else 3.0 if "post_" in key else 0.0)
                elif name.startswith("gemma"):  # Gemma stores weights less 1, and begins with large embeddings
                    parameter.add_(2.0 if "post_" in key and name != "gemma" else -1.0)
                elif name.startswith(("qwen3.5", "qwen3-next")) and "linear_attn" not in key:
                    parameter.add_(-1.0)
            elif key.endswith(".A_log"):
                parameter.uniform_(-3.0, 1.0)
            elif key.endswith(".D"):
                parameter.normal_()
            elif key.endswith(("router.scale", "per_expert_scale", "correct_output_scale")):
                parameter.uniform_(0.5, 1.5)
        for key, buffer in model.named_buffers():
            if key.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.normal_(0.0, 0.1)
            elif key.endswith("layer_scalar"):
                buffer.fill_(0.8)
    return model


def save_model(name: str, folder: Path, *, shards: int = 1) -> PreTrainedModel:
    """Write a model and a tokenizer in Hugging Face format, in `shards` files."""
    model = make_model(name)
    size = sum(p.numel() * 4 for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=size if shards == 1 else size // shards)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return model


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer of bytes after 15 special tokens: any text has ids, and most ids end within a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<bos>", "<eos>", *(f"<s{i}>" for i in range(13))]
    vocab = {token: i for i, token in enumerate([*special, *alphabet])}
    assert len(vocab) == VOCAB_SIZE
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: list[int], num_tokens: int, *, guess: Sequence[int] = ()) -> list[int]:
    """Return transformers' greedy output, without an early end.

    `guess`: the likely output. If each of its tokens is the best after those before it, one pass tells.
    """
    if len(guess) == num_tokens:
        best = model(torch.tensor([[*prompt, *guess[:-1]]])).logits[0, len(prompt) - 1 :].argmax(-1)
        if best.tolist() == list(guess):
            return list(guess)
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    token_ids: list[int] = out[0, len(prompt) :].tolist()
    return token_ids


def write_config(folder: Path, **changes: Any) -> None:
    """Change fields of a saved config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
