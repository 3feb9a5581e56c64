"""Architecture: the family that serves a value of general.architecture, and its converter's changes. Imports no torch.

source.py undoes the changes that llama.cpp's converter made to the weights (convert_hf_to_gguf.py of
https://github.com/ggml-org/llama.cpp).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError
from . import encoder_fields, gemma_fields, hybrid_fields
from . import family_fields as fields
from .file import GgufFile
from .keys import Keys

# Tensors that the config is read from.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
# Tensors whose shape differs from the checkpoint's by dimensions of size 1, or by groups of a vector.
RESHAPED = ("exp_probs_b", "ssm_a", "ssm_d", "ssm_conv1d", "ssm_norm", "shortconv.conv", "ffn_gate_inp_shexp")
# Parts of a tensor's name: GGUF's -> most families' checkpoints'.
NAMES = {
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
_SHARED_KV_NAMES = {
    **_GEMMA2_NAMES,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_GEMMA3N_NAMES = {
    **_SHARED_KV_NAMES,
    "altup_proj": "model.altup_projections.{}",
    "altup_unembd_proj": "model.altup_unembed_projections.{}",
    "altup_correct_coef": "altup.correction_coefs",
    "altup_correct_scale": "altup.correct_output_scale",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
_GEMMA4_NAMES = {
    **_SHARED_KV_NAMES,
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "layer_output_scale": "layer_scalar",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    **{f"ffn_{part}_exps": f"experts.{{}}.{part}_proj" for part in ("gate_up", "gate", "up", "down")},
}
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
_MIXTRAL_NAMES = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_LLAMA4_NAMES = {
    **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
    "ffn_gate_inp": "feed_forward.router",
    **{f"ffn_{part}_exps": f"feed_forward.experts.{{}}.{part}_proj" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_shexp": f"feed_forward.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
}
_MINIMAX_NAMES = {**_MIXTRAL_NAMES, "exp_probs_b": "block_sparse_moe.e_score_correction_bias"}
_DEEPSEEK_NAMES = {
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
    **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
}
_LATENT_NAMES = {
    **_DEEPSEEK_NAMES,
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
_GLM4_MOE_NAMES = {**_DEEPSEEK_NAMES, "post_attention_norm": "post_attention_layernorm"}
_GRANITE_MOE_NAMES = {
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.gate_proj",
    "ffn_up_exps": "block_sparse_moe.experts.{}.up_proj",
    "ffn_down_exps": "block_sparse_moe.experts.{}.down_proj",
}
_GPT_OSS_NAMES = {
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
}
_GLM4_NAMES = {
    "ffn_up": "mlp.gate_up_proj",
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
_HUNYUAN_NAMES = {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
_HUNYUAN_MOE_NAMES = {
    **_HUNYUAN_NAMES,
    "ffn_gate_inp": "mlp.gate.wg",
    **{f"ffn_{part}_shexp": f"mlp.shared_mlp.{part}_proj" for part in ("gate", "up", "down")},
}
_SHARED_EXPERT_NAMES = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
}
_DELTA_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}


def _mamba_names(mixer: str) -> dict[str, str]:
    return {
        "ssm_in": f"{mixer}.in_proj",
        "ssm_conv1d": f"{mixer}.conv1d",
        "ssm_a": f"{mixer}.A_log",
        "ssm_d": f"{mixer}.D",
        "ssm_dt": f"{mixer}.dt_bias",
        "ssm_norm": f"{mixer}.norm",
        "ssm_out": f"{mixer}.out_proj",
    }


_FALCON_H1_NAMES = {
    **_mamba_names("mamba"),
    "output_norm": "model.final_layernorm",
    "ffn_norm": "pre_ff_layernorm",
    **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
}
_GRANITE_HYBRID_NAMES = {
    **_mamba_names("mamba"),
    **_GRANITE_MOE_NAMES,
    **{f"ffn_{part}": f"shared_mlp.{part}_proj" for part in ("gate", "up")},
    **{f"ffn_{part}_shexp": f"shared_mlp.{part}_proj" for part in ("gate", "up")},
    **dict.fromkeys(("ffn_down", "ffn_down_shexp"), "shared_mlp.output_linear"),
}
_LFM2_MATRICES = (("gate", "w1"), ("up", "w3"), ("down", "w2"))
_LFM2_NAMES = {
    **dict.fromkeys(("token_embd_norm", "output_norm"), "model.embedding_norm"),
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    **{f"shortconv.{part}": f"conv.{part}" for part in ("conv", "in_proj", "out_proj")},
    "ffn_norm": "ffn_norm",
    "ffn_gate_inp": "feed_forward.gate",
    "exp_probs_b": "feed_forward.expert_bias",
    **{f"ffn_{part}": f"feed_forward.{name}" for part, name in _LFM2_MATRICES},
    **{f"ffn_{part}_exps": f"feed_forward.experts.{{}}.{name}" for part, name in _LFM2_MATRICES},
}
_MIXER_NAMES = {
    **_mamba_names("mixer"),
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "blk": "backbone.layers",
    "attn_norm": "norm",
}
_NEMOTRON_H_NAMES = {
    **_MIXER_NAMES,
    **{f"attn_{part}": f"mixer.{part}_proj" for part in ("q", "k", "v")},
    "attn_output": "mixer.o_proj",
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
    "ffn_gate_inp": "mixer.gate",
    "exp_probs_b": "mixer.gate.e_score_correction_bias",
    "ffn_up_exps": "mixer.experts.{}.up_proj",
    "ffn_down_exps": "mixer.experts.{}.down_proj",
    "ffn_up_shexp": "mixer.shared_experts.up_proj",
    "ffn_down_shexp": "mixer.shared_experts.down_proj",
    "ffn_latent_down": "mixer.fc1_latent_proj",
    "ffn_latent_up": "mixer.fc2_latent_proj",
}
_FALCON_NAMES = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "blk": "transformer.h",
    "attn_norm_2": "ln_attn",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
_NEOX_NAMES = {
    **_FALCON_NAMES,
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    "blk": "gpt_neox.layers",
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
}
_STABLELM_NAMES = {f"attn_{part}_norm": f"self_attn.{part}_layernorm.norms.{{}}" for part in "qk"}
_ERNIE_NAMES = {**_DEEPSEEK_NAMES, "exp_probs_b": "mlp.moe_statics.e_score_correction_bias"}
_GPT2_TRANSPOSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Model architecture: one value of general.architecture."""

    family: str  # an entry of config.json's `architectures`
    names: Mapping[str, str] = field(default_factory=dict)  # parts of tensors' names that differ from NAMES
    interleaves_heads: bool = False  # the converter interleaved the rows of q and k
    norms_add_one: bool = False
    transposed: tuple[str, ...] = ()
    splits_qkv: bool = False  # a file may have one matrix where the family has three
    fields: Callable[[Keys], dict[str, Any]] = lambda keys: {}  # config.json's fields of this family alone


ARCHITECTURES = {
    "apertus": Architecture(
        family="ApertusForCausalLM",
        names={"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"},
        fields=fields.apertus_fields,
    ),
    "arcee": Architecture(family="ArceeForCausalLM", interleaves_heads=True),
    "bert": Architecture(family="BertModel", names=encoder_fields.BERT_NAMES, fields=encoder_fields.bert_fields),
    "chatglm": Architecture(family="GlmForCausalLM", names={"ffn_up": "mlp.gate_up_proj"}, splits_qkv=True),
    "cohere2": Architecture(family="Cohere2ForCausalLM", fields=fields.cohere_fields),
    "command-r": Architecture(family="CohereForCausalLM", fields=fields.cohere_fields),
    "deepseek2": Architecture(family="DeepseekV3ForCausalLM", names=_LATENT_NAMES, fields=fields.latent_fields),
    "dots1": Architecture(family="Dots1ForCausalLM", names=_DEEPSEEK_NAMES, fields=fields.deepseek_fields),
    "ernie4_5": Architecture(family="Ernie4_5ForCausalLM", fields=fields.ernie_fields),
    "ernie4_5-moe": Architecture(family="Ernie4_5_MoeForCausalLM", names=_ERNIE_NAMES, fields=fields.ernie_moe_fields),
    "exaone": Architecture(family="LlamaForCausalLM"),
    "exaone4": Architecture(family="Exaone4ForCausalLM", names=_NORMS_AFTER, fields=fields.exaone4_fields),
    "falcon": Architecture(family="FalconForCausalLM", names=_FALCON_NAMES, fields=fields.falcon_fields),
    "falcon-h1": Architecture(
        family="FalconH1ForCausalLM", names=_FALCON_H1_NAMES, fields=hybrid_fields.falcon_h1_fields
    ),
    "gemma": Architecture(family="GemmaForCausalLM", norms_add_one=True),
    "gemma2": Architecture(
        family="Gemma2ForCausalLM", names=_GEMMA2_NAMES, norms_add_one=True, fields=gemma_fields.gemma2_fields
    ),
    "gemma3": Architecture(
        family="Gemma3ForCausalLM", names=_GEMMA2_NAMES, norms_add_one=True, fields=gemma_fields.gemma3_fields
    ),
    "gemma3n": Architecture(family="Gemma3nForCausalLM", names=_GEMMA3N_NAMES, fields=gemma_fields.gemma3n_fields),
    "gemma4": Architecture(family="Gemma4ForCausalLM", names=_GEMMA4_NAMES, fields=gemma_fields.gemma4_fields),
    "glm4": Architecture(family="Glm4ForCausalLM", names=_GLM4_NAMES, fields=fields.glm4_fields),
    "glm4moe": Architecture(family="Glm4MoeForCausalLM", names=_GLM4_MOE_NAMES, fields=fields.deepseek_fields),
    "gptneox": Architecture(family="GPTNeoXForCausalLM", names=_NEOX_NAMES, fields=fields.neox_fields),
    "gpt2": Architecture(
        family="GPT2LMHeadModel", names=_GPT2_NAMES, transposed=_GPT2_TRANSPOSED, fields=fields.gpt2_fields
    ),
    "gpt-oss": Architecture(family="GptOssForCausalLM", names=_GPT_OSS_NAMES, fields=fields.gpt_oss_fields),
    "granite": Architecture(family="GraniteForCausalLM", interleaves_heads=True, fields=fields.granite_fields),
    "granitehybrid": Architecture(
        family="GraniteMoeHybridForCausalLM",
        names=_GRANITE_HYBRID_NAMES,
        interleaves_heads=True,
        fields=hybrid_fields.granite_hybrid_fields,
    ),
    "granitemoe": Architecture(
        family="GraniteMoeForCausalLM",
        names=_GRANITE_MOE_NAMES,
        interleaves_heads=True,
        fields=fields.granite_moe_fields,
    ),
    "hunyuan-dense": Architecture(family="HunYuanDenseV1ForCausalLM", names=_HUNYUAN_NAMES),
    "hunyuan-moe": Architecture(
        family="HunYuanMoEV1ForCausalLM", names=_HUNYUAN_MOE_NAMES, fields=fields.hunyuan_moe_fields
    ),
    **dict.fromkeys(("internlm2", "xverse"), Architecture(family="LlamaForCausalLM", interleaves_heads=True)),
    "lfm2": Architecture(family="Lfm2ForCausalLM", names=_LFM2_NAMES, fields=hybrid_fields.lfm2_fields),
    "lfm2moe": Architecture(family="Lfm2MoeForCausalLM", names=_LFM2_NAMES, fields=hybrid_fields.lfm2_moe_fields),
    "llama": Architecture(family="LlamaForCausalLM", interleaves_heads=True),
    "llama4": Architecture(family="Llama4ForCausalLM", names=_LLAMA4_NAMES, fields=fields.llama4_fields),
    "mamba2": Architecture(family="Mamba2ForCausalLM", names=_MIXER_NAMES, fields=hybrid_fields.mamba2_fields),
    "minicpm": Architecture(family="GraniteForCausalLM", interleaves_heads=True, fields=fields.minicpm_fields),
    "minimax-m2": Architecture(family="MiniMaxM2ForCausalLM", names=_MINIMAX_NAMES, fields=fields.minimax_fields),
    "mistral3": Architecture(family="Ministral3ForCausalLM", interleaves_heads=True, fields=fields.mistral3_fields),
    "modern-bert": Architecture(
        family="ModernBertModel", names=encoder_fields.MODERN_NAMES, fields=encoder_fields.modern_fields
    ),
    "nemotron": Architecture(family="NemotronForCausalLM", norms_add_one=True, fields=fields.nemotron_fields),
    **dict.fromkeys(
        ("nemotron_h", "nemotron_h_moe"),
        Architecture(family="NemotronHForCausalLM", names=_NEMOTRON_H_NAMES, fields=hybrid_fields.nemotron_h_fields),
    ),
    "nomic-bert": Architecture(
        family="NomicBertModel", names=encoder_fields.NOMIC_NAMES, fields=encoder_fields.nomic_fields
    ),
    "olmo2": Architecture(family="Olmo2ForCausalLM", names=_NORMS_AFTER),
    "olmoe": Architecture(family="OlmoeForCausalLM", fields=fields.olmoe_fields),
    "phi3": Architecture(family="Phi3ForCausalLM", names={"ffn_up": "mlp.gate_up_proj"}, fields=fields.phi3_fields),
    "phimoe": Architecture(family="PhimoeForCausalLM", names=_MIXTRAL_NAMES, fields=fields.phimoe_fields),
    "qwen2": Architecture(family="Qwen2ForCausalLM"),
    "qwen2moe": Architecture(family="Qwen2MoeForCausalLM", names=_SHARED_EXPERT_NAMES, fields=fields.qwen2_moe_fields),
    "qwen3": Architecture(family="Qwen3ForCausalLM"),
    "qwen2vl": Architecture(family="Qwen2ForCausalLM"),  # positions of text are the same in all three sections
    "qwen3vl": Architecture(family="Qwen3ForCausalLM"),
    "qwen3vlmoe": Architecture(family="Qwen3MoeForCausalLM", fields=fields.qwen3_moe_fields),
    "qwen35": Architecture(
        family="Qwen3_5ForCausalLM", names=_DELTA_NAMES, norms_add_one=True, fields=hybrid_fields.qwen3_5_fields
    ),
    "qwen35moe": Architecture(
        family="Qwen3_5MoeForCausalLM",
        names=_DELTA_NAMES | _SHARED_EXPERT_NAMES,
        norms_add_one=True,
        fields=hybrid_fields.qwen3_5_fields,
    ),
    "qwen3moe": Architecture(family="Qwen3MoeForCausalLM", fields=fields.qwen3_moe_fields),
    "qwen3next": Architecture(
        family="Qwen3NextForCausalLM",
        names=_DELTA_NAMES | _SHARED_EXPERT_NAMES,
        norms_add_one=True,
        fields=hybrid_fields.qwen3_next_fields,
    ),
    "seed_oss": Architecture(
        family="SeedOssForCausalLM",
        names={"post_attention_norm": "post_attention_layernorm"},
        fields=fields.seed_oss_fields,
    ),
    "smollm3": Architecture(family="SmolLM3ForCausalLM", interleaves_heads=True),
    "stablelm": Architecture(family="StableLmForCausalLM", names=_STABLELM_NAMES, fields=fields.stablelm_fields),
    "starcoder2": Architecture(
        family="Starcoder2ForCausalLM",
        names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        fields=fields.starcoder2_fields,
    ),
}
# Architectures that serve another family in files with this key.
_VARIANTS = {
    "llama": (
        "expert_count",
        Architecture(
            family="MixtralForCausalLM",
            names=_MIXTRAL_NAMES,
            interleaves_heads=True,
            fields=fields.mixtral_fields,
        ),
    ),
    "olmo2": (
        "attention.sliding_window",
        Architecture(family="Olmo3ForCausalLM", names=_NORMS_AFTER, fields=fields.olmo3_fields),
    ),
}


# Files that are no models, by general.architecture or general.type.
_NO_MODELS = {
    "clip": "is the encoder of a model's images (mmproj), which are not served; give the model's own file beside it",
    "mmproj": "is the encoder of a model's images, which are not served; give the model's own file beside it",
    "adapter": "is an adapter (LoRA), not a model; serve its base model with --enable-lora --lora-modules NAME=FILE",
    "controlvector": "is a control vector, not a model; control vectors are not supported",
    "imatrix": "holds the importance of a model's weights, not the model; give the model's own file",
}


def architecture_of(file: GgufFile, *, lora: bool = False) -> Architecture:
    """Return the architecture of this file, or of an adapter's base model (`lora`). Raises ConfigError."""
    name = file.metadata.get("general.architecture")
    if (what := _NO_MODELS.get(str(name)) or _NO_MODELS.get(str(file.metadata.get("general.type")))) and not lora:
        raise ConfigError(f"{file.path} {what}")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ConfigError(
            f"{file.path}: GGUF architecture {name!r} is not known; `splitfuse models --supported` lists the "
            f"{len(ARCHITECTURES)} that are"
        )
    key, variant = _VARIANTS.get(name, ("", None))
    return variant if variant and file.metadata.get(f"{name}.{key}") else ARCHITECTURES[name]


def names_of_families() -> dict[str, list[str]]:
    """Return the values of general.architecture that each family serves."""
    names: dict[str, list[str]] = {}
    for name, architecture in ARCHITECTURES.items():
        names.setdefault(architecture.family, []).append(name)
    for name, (key, architecture) in _VARIANTS.items():
        names.setdefault(architecture.family, []).append(f"{name} with {key}")
    return names
