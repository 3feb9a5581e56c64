"""GGUF files of the tiny models, written with the `gguf` package in the manner of llama.cpp's converter.

The package knows the tensors' names; this file has the converter's changes of values (convert_hf_to_gguf.py).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import gguf_gemma
import gguf_hybrids
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from tiny_models import CONFIGS, HYBRIDS, VOCAB_SIZE, byte_tokenizer, make_model
from transformers import PretrainedConfig, PreTrainedModel

from splitfuse.engine.formats.gguf import architectures as known

# Architectures whose name is not the model_type.
ARCHITECTURES = {
    "cohere": "command-r",
    "ernie4_5_moe": "ernie4_5-moe",
    "glm": "chatglm",
    "gpt_neox": "gptneox",
    "ministral3": "mistral3",
    "qwen2_moe": "qwen2moe",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "gemma3_text": "gemma3",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "glm4_moe": "glm4moe",
    "gpt_oss": "gpt-oss",
    "granitemoe": "granitemoe",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "llama4_text": "llama4",
    "minimax_m2": "minimax-m2",
    "mixtral": "llama",
    "olmo3": "olmo2",
    "qwen3_moe": "qwen3moe",
}
_ADDING_ONE = ("gemma", "gemma2", "gemma3", "nemotron")
_SHARED_KV = ("gemma3n", "gemma4")
_INTERLEAVING = ("arcee", "granite", "granitehybrid", "granitemoe", "llama", "mistral3", "smollm3")
_LAYER_NORMS = ("cohere2", "command-r", "falcon", "gptneox", "nemotron", "stablelm", "starcoder2")


# Types that the package does not quantize -> bytes of a block's scales, halves, and a size that makes values some
# tenths wide. Other bytes of a block are drawn from the values.
_DRAWN = {
    "Q2_K": ((80, 82), 1 / 200),
    "Q3_K": ((108,), 1 / 500),
    "Q4_K": ((0, 2), 1 / 4000),
    "Q5_K": ((0, 2), 1 / 8000),
    "Q6_K": ((208,), 1 / 16000),
    "IQ1_S": ((0,), 1 / 64),
    "IQ1_M": ((), 0),
    "IQ2_XXS": ((0,), 1 / 640),
    "IQ2_XS": ((0,), 1 / 640),
    "IQ2_S": ((0,), 1 / 640),
    "IQ3_XXS": ((0,), 1 / 2000),
    "IQ3_S": ((0,), 1 / 2000),
    "IQ4_NL": ((0,), 1 / 500),
    "IQ4_XS": ((0,), 1 / 16000),
    "NVFP4": ((), 0),
}
Kinds = Callable[[str], Type]  # type of a tensor with this name in transformers


def quantized(values: np.ndarray, kind: Type) -> np.ndarray:
    """Quantize rows; where the package cannot, return blocks that depend on a block's values and nothing else."""
    if kind.name not in _DRAWN:
        return gguf.quantize(values, kind)
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    drawn = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, size).view(np.uint8)
    blocks = drawn.reshape(len(drawn), size, 4)[:, :, :2].reshape(len(drawn), -1)[:, :num_bytes].copy()
    places, scale = _DRAWN[kind.name]
    for at in places:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    if kind is Type.IQ1_M:  # its half is in the upper digits of the scales
        digits = np.frombuffer(np.float16(1 / 64).tobytes(), np.uint16)[0] >> np.arange(0, 16, 4) & 15
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | (digits << 4).astype(np.uint8)
    if kind is Type.NVFP4:
        blocks[:, :4] = blocks[:, :4] & 15 | 16
    return blocks.reshape(*values.shape[:-1], -1)


def write_gguf(path: Path, name: str, *, kind: Type = Type.F32, **options: Any) -> PreTrainedModel:
    """Write a model of CONFIGS and the tests' tokenizer; its matrices as `kind` where their rows have whole blocks.

    `options`: those of `write_model`. The returned model has the values of the file.
    """
    model = make_model(name)
    write_model(path, model, is_hybrid=name in HYBRIDS, kind=kind, **options)
    return model


def write_model(
    path: Path,
    model: PreTrainedModel,
    *,
    is_hybrid: bool,
    kind: Type | Kinds,
    alignment: int | None = None,
    named: str = "",
    split: str = "gpt-2",
    tensors_of_a_part: int = 0,
) -> None:
    """Write a model and the tests' tokenizer, like `write_gguf`. The model gets the values of the file.

    `named`: another architecture of the same tensors. `split`: name of the vocabulary's word split, or its kind.
    `tensors_of_a_part`: at most so many tensors stand in each part of the file.
    """
    kind_of: Kinds = (lambda _: kind) if isinstance(kind, Type) else kind
    if is_hybrid:
        architecture = gguf_hybrids.architecture_of(model.config)
    else:
        architecture = ARCHITECTURES.get(model.config.model_type, model.config.model_type)
    writer = gguf.GGUFWriter(path, named or architecture, split_max_tensors=tensors_of_a_part)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    if is_hybrid:
        gguf_hybrids.add_fields(writer, model.config)
    elif architecture in _SHARED_KV:
        gguf_gemma.add_fields(writer, model.config)
    else:
        _add_shape(writer, model.config, architecture)
        _add_rope(writer, model.config, architecture)
    add_vocabulary(writer, model.config.vocab_size, split)
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    dense = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, model.config.num_hidden_layers)  # without experts
    if architecture == "apertus":
        activations = [layer.mlp.act_fn for layer in model.model.layers]
        writer.add_xielu_alpha_p([activation.alpha_p.item() for activation in activations])
        writer.add_xielu_alpha_n([activation.alpha_n.item() for activation in activations])
    parameters = gguf_gemma.parts(model) if architecture in _SHARED_KV else _stacked_norms(model)
    for key, parameter in parameters:
        if "act_fn" in key:
            continue
        if architecture in _SHARED_KV:
            pieces = iter([(key, parameter.data)])
        elif architecture == "llama4" and key.endswith("_proj") and parameter.ndim == 3:
            pieces = _parts(key, parameter.data.transpose(1, 2), model.config)
        elif architecture == "gpt-oss":
            pieces = _gpt_oss_parts(key, parameter.data)
        elif is_hybrid:
            pieces = gguf_hybrids.parts(key, parameter.data, model.config)
        else:
            pieces = _parts(key, parameter.data, model.config)
        for part, values in pieces:
            if part.startswith("="):  # already the file's name
                _add_tensor(writer, part[1:], values, kind_of(key))
                continue
            suffixes = (".weight", ".bias")
            written = names.get_name(part, try_suffixes=suffixes) or dense.get_name(part, try_suffixes=suffixes)
            assert written is not None, part
            _add_tensor(writer, written, _converted(part, values, model.config, architecture), kind_of(key))
    for key, values in model.named_buffers():
        if key.endswith(("e_score_correction_bias", "expert_bias")):
            _add_tensor(writer, f"blk.{key.split('.')[2]}.exp_probs_b.bias", values, Type.F32)
    _round(model, kind_of)  # before tensors that are not quantized are written: they share the model's memory
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: torch.Tensor, kind: Type) -> None:
    array = values.contiguous().numpy()
    is_plain = array.ndim < 2 or "_norm" in name or name.endswith(".bias")
    if is_plain or array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = Type.F32
    writer.add_tensor(name, quantized(array, kind), raw_dtype=kind)


def _round(model: PreTrainedModel, kind_of: Kinds) -> None:
    """Round the model's values like quantization. (Rows are permuted, never mixed, before it.)"""
    is_transposed = model.config.model_type in ("gpt_oss", "llama4_text")
    for key, parameter in model.named_parameters():
        values = parameter.data.T if _is_transposed(key) else parameter.data
        is_bias, kind = key.endswith("_bias"), kind_of(key)
        if values.ndim > 2 and is_transposed:
            values = values.transpose(1, 2)
        if values.ndim > 1 and values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 and not is_bias:
            blocks = quantized(values.contiguous().numpy(), kind)
            rounded = torch.from_numpy(np.array(gguf.dequantize(blocks, kind))).view(values.shape)
            rounded = rounded.transpose(1, 2) if values.ndim > 2 and is_transposed else rounded
            parameter.data.copy_(rounded.T if _is_transposed(key) else rounded)


def _is_transposed(key: str) -> bool:
    return key.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))


def _stacked_norms(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all parameters; StableLM's norms of a layer's heads as one matrix."""
    norms: dict[str, list[torch.Tensor]] = {}
    for key, parameter in model.named_parameters():
        if ".norms." in key:
            norms.setdefault(f"{key.partition('.norms.')[0]}.weight", []).append(parameter)
        else:
            yield key, parameter
    for key, heads in norms.items():
        yield key, torch.stack(heads)


def _parts(key: str, values: torch.Tensor, config: PretrainedConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the file's tensors for one of the model's."""
    if key.endswith("kv_b_proj.weight") and not _is_older(config):
        heads = values.view(config.num_attention_heads, -1, values.shape[1])
        keys, values = heads.split_with_sizes([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        yield key.replace("kv_b", "k_b"), keys.transpose(1, 2)
        yield key.replace("kv_b", "v_b"), values
        return
    if key.endswith(("query_key_value.weight", "query_key_value.bias")):  # queries, keys and values in order
        groups = _num_kv_heads(config)
        grouped = values.view(groups, config.num_attention_heads // groups + 2, -1, *values.shape[1:])
        parts = (grouped[:, :-2], grouped[:, -2], grouped[:, -1])
        yield key, torch.cat([part.reshape(-1, *values.shape[1:]) for part in parts])
        return
    key = key.replace("gate.moe_statics.e_score_correction_bias", "moe_statics.e_score_correction.bias")
    key = key.replace("moe.router.weight", "moe.router.layer.weight").replace("block_sparse_moe.experts", "mlp.experts")
    if not key.endswith(("experts.gate_up_proj", "experts.down_proj")):
        yield key, values
    elif key.endswith("down_proj"):
        yield f"{key}.weight", values
    else:
        halves = (key.replace("gate_up_", half) + ".weight" for half in ("gate_", "up_"))
        yield from zip(halves, values.chunk(2, dim=1), strict=True)


def _gpt_oss_parts(key: str, values: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the file's tensors: a matrix [E, out, in] and a bias for each half of the experts."""
    stem, is_bias = key.removesuffix("_bias"), key.endswith("_bias")
    ending = ".bias" if is_bias else ".weight"
    if not stem.endswith(("experts.gate_up_proj", "experts.down_proj")):
        yield (f"{key}.weight" if key.endswith("sinks") else key), values
        return
    values = values if is_bias else values.transpose(1, 2)
    if stem.endswith("down_proj"):
        yield stem + ending, values
    else:
        for number, half in enumerate(("gate_", "up_")):
            yield stem.replace("gate_up_", half) + ending, values[:, number::2]


def _converted(key: str, values: torch.Tensor, config: PretrainedConfig, architecture: str) -> torch.Tensor:
    if architecture in _ADDING_ONE and key.endswith("norm.weight"):
        return values + 1
    if architecture == "gpt2" and _is_transposed(key):
        return values.T
    if architecture not in _INTERLEAVING:
        return values
    for part, num_heads in (("q_proj", config.num_attention_heads), ("k_proj", _num_kv_heads(config))):
        if part in key:
            halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, *values.shape[1:])
            return halves.swapaxes(1, 2).reshape(values.shape)
    return values


def _num_kv_heads(config: PretrainedConfig) -> int:
    if config.model_type == "falcon":
        return config.num_kv_heads if config.new_decoder_architecture else 1
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def _add_shape(writer: gguf.GGUFWriter, config: PretrainedConfig, architecture: str) -> None:
    writer.add_name("A tiny one")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers + (architecture == "glm4moe"))
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    if architecture == "gpt2":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    sizes = ("intermediate_size_mlp", "ffn_hidden_size", "intermediate_size")
    writer.add_feed_forward_length(next(getattr(config, name) for name in sizes if hasattr(config, name)))
    is_latent = architecture == "deepseek2" and not _is_older(config)
    writer.add_head_count_kv(1 if is_latent else _num_kv_heads(config))
    if architecture in _LAYER_NORMS:
        names = ("norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
        writer.add_layer_norm_eps(next(getattr(config, name) for name in names if hasattr(config, name)))
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if architecture == "deepseek2":
        _add_latent(writer, config)
    elif head_dim := getattr(config, "head_dim", None):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    window = getattr(config, "sliding_window", None)
    if window and config.model_type not in ("mixtral", "qwen2_moe", "starcoder2"):
        writer.add_sliding_window(window)
    if window and architecture in ("exaone4", "olmo2"):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    if architecture in ("cohere2", "command-r"):
        writer.add_logit_scale(config.logit_scale)
    if architecture in ("granite", "granitemoe"):
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    num_experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    num_experts = num_experts or getattr(config, "n_routed_experts", None) or getattr(config, "moe_num_experts", None)
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(
            getattr(config, "num_experts_per_tok", None) or getattr(config, "moe_topk", 0) or config.moe_k
        )
    if architecture == "glm4moe":  # and a layer that predicts one token more
        writer.add_nextn_predict_layers(1)
        _add_tensor(writer, f"blk.{config.num_hidden_layers}.nextn.enorm.weight", torch.ones(8), Type.F32)
        _add_tensor(writer, f"blk.{config.num_hidden_layers}.attn_norm.weight", torch.ones(8), Type.F32)
    if architecture == "hunyuan-moe":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if architecture in ("dots1", "glm4moe", "minimax-m2"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.model_type == "deepseek_v3":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if architecture in ("deepseek2", "dots1", "glm4moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_count(config.n_shared_experts)
        if config.n_group is not None:
            writer.add_expert_group_count(config.n_group)
            writer.add_expert_group_used_count(config.topk_group)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_weights_norm(bool(getattr(config, "norm_topk_prob", False)))
        writer.add_expert_weights_scale(config.routed_scaling_factor)
    if architecture == "ernie4_5-moe":
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        writer.add_expert_shared_count(config.moe_num_shared_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if architecture in ("gptneox", "stablelm"):
        writer.add_parallel_residual(config.use_parallel_residual)
    if architecture == "llama4":
        writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    if architecture in ("gpt-oss", "llama4", "qwen2moe", "qwen3moe"):
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    if architecture in ("gemma2", "gemma3"):
        writer.add_attention_scale(config.query_pre_attn_scalar**-0.5)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if architecture == "gemma3":
        writer.add_sliding_window_pattern(config.layer_types.index("full_attention") + 1)


def _add_latent(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    width = config.qk_nope_head_dim + config.qk_rope_head_dim
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    if _is_older(config):
        writer.add_key_length(width)
        writer.add_value_length(config.v_head_dim)
        return
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(width)
    writer.add_value_length_mla(config.v_head_dim)


def _is_older(config: PretrainedConfig) -> bool:
    """True if the tests' file has keys and values of latents in one matrix, like files of before 2025."""
    return config.model_type == "deepseek_v2" and config.n_group is not None


def _add_rope(writer: gguf.GGUFWriter, config: PretrainedConfig, architecture: str) -> None:
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    if not rope:
        return
    head_dim = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
    head_dim = head_dim or config.hidden_size // config.num_attention_heads
    # Hunyuan's fixed alpha stretches the base as the file is written.
    stretch = float(rope.get("alpha") or 1.0) ** (head_dim / (head_dim - 2))
    writer.add_rope_freq_base(rope["rope_theta"] * stretch)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    kind = rope.get("rope_type", "default")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if architecture == "deepseek2":
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
        if architecture == "mistral3":
            writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
            writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        if architecture == "olmo2":
            writer.add_rope_scaling_attn_factors(rope["attention_factor"])
    elif kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        original, factor = config.original_max_position_embeddings, rope["factor"]
        writer.add_rope_scaling_attn_factors((1 + np.log(factor) / np.log(original)) ** 0.5)
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], dtype=np.float32))
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(rope, head_dim))


def _llama3_divisors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    divisors = []
    longest = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    shortest = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for index in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (index / head_dim)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (rope["original_max_position_embeddings"] / wavelength - low) / (high - low)
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        divisors.append(1.0 if wavelength < shortest else rope["factor"] if wavelength > longest else between)
    return np.array(divisors, dtype=np.float32)


def add_vocabulary(writer: gguf.GGUFWriter, size: int = VOCAB_SIZE, split: str = "gpt-2") -> None:
    """Add the tests' tokenizer, padded with words, and one merge: without merges it is no byte-level vocabulary.

    `split`: a name of a word split, or `llama` or `gemma4`, whose tokens for bytes are <0x00> to <0xFF>.
    """
    vocab = sorted(byte_tokenizer().get_vocab().items(), key=lambda item: item[1])
    tokens = [token if token != "<s12>" else "th" for token, _ in vocab]
    types = [gguf.TokenType.CONTROL if len(token) > 2 else gguf.TokenType.NORMAL for token in tokens]
    is_byte_level = split not in ("llama", "gemma4")
    if not is_byte_level:
        tokens[-256:] = [f"<0x{byte:02X}>" for byte in range(256)]
        tokens[2:6], types[2:6] = ["<unk>", "t", "h", "▁"], [gguf.TokenType.UNKNOWN, *[gguf.TokenType.NORMAL] * 3]
        types[-256:] = [gguf.TokenType.BYTE] * 256
        writer.add_unk_token_id(2)
    words = [f"Ġ{number}" for number in range(size - len(tokens))]
    writer.add_tokenizer_model("gpt2" if is_byte_level else split)
    if is_byte_level:
        writer.add_tokenizer_pre(split)
    writer.add_token_list([*tokens, *words])
    writer.add_token_types([*types, *[gguf.TokenType.NORMAL] * len(words)])
    if split == "llama":
        writer.add_token_scores([0.0] * size)
    else:
        writer.add_token_merges(["t h"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


# Models that no GGUF can express: scales, chunks, layers without positions, activations and norms of their own.
_INEXPRESSIBLE = (
    *("gpt2-untied", "llama4", "smollm3", "smollm3-window", "gpt-neox-sequential", "qwen2-moe-no-bias"),
    *("starcoder2-no-bias", "falcon-sequential"),
)
GGUF_MODELS = sorted(
    name
    for name, config in CONFIGS.items()
    if ARCHITECTURES.get(config.model_type, config.model_type) in known.ARCHITECTURES and name not in _INEXPRESSIBLE
)
GGUF_HYBRIDS = sorted(HYBRIDS.keys() - {"kimi-linear"})  # not read from GGUF yet
