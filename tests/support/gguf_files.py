"""GGUF files of the tiny models, written with the `gguf` package in the manner of llama.cpp's converter.

gguf_files.json has each model's architecture, its metadata without the architecture's name, and tensors that are no
weights. The package knows the tensors' names; this file has the converter's changes of values (convert_hf_to_gguf.py).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import gguf
import gguf_gemma
import gguf_hybrids
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from tiny_models import CONFIGS, HYBRIDS, VOCAB_SIZE, byte_tokenizer, make_model
from transformers import LlamaConfig, LlamaForCausalLM, PretrainedConfig, PreTrainedModel

from splitfuse.engine.formats.gguf.tensor_types import TENSOR_TYPES

_ADDING_ONE = ("gemma", "gemma2", "gemma3", "nemotron")
_SHARED_KV = ("gemma3n", "gemma4")
_INTERLEAVING = ("arcee", "granite", "granitehybrid", "granitemoe", "granite_swa", "llama", "mistral3", "smollm3")
# Granite Swash's tensors whose names, or whose fused halves, the package lacks.
_SWASH = {
    "self_attn.sinks": "attn_sinks", "block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps",
    "shared_mlp.input_linear.weight": "ffn_up_shexp", "shared_mlp.output_linear.weight": "ffn_down_shexp",
}  # fmt: skip
_FIELDS: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
GGUF_MODELS, GGUF_HYBRIDS = sorted(_FIELDS.keys() & CONFIGS.keys()), sorted(_FIELDS.keys() & HYBRIDS.keys())


# Types that the package does not quantize -> bytes of a block's scales, halves, and a size that makes values some
# tenths wide. Other bytes of a block are drawn from the values.
_DRAWN = {
    "Q2_K": ((80, 82), 1 / 200), "Q3_K": ((108,), 1 / 500), "Q4_K": ((0, 2), 1 / 4000), "Q5_K": ((0, 2), 1 / 8000),
    "Q6_K": ((208,), 1 / 16000), "IQ1_S": ((0,), 1 / 64), "IQ1_M": ((), 0), "IQ2_XXS": ((0,), 1 / 640),
    "IQ2_XS": ((0,), 1 / 640), "IQ2_S": ((0,), 1 / 640), "IQ3_XXS": ((0,), 1 / 2000), "IQ3_S": ((0,), 1 / 2000),
    "IQ4_NL": ((0,), 1 / 500), "IQ4_XS": ((0,), 1 / 16000), "NVFP4": ((), 0),
}  # fmt: skip
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
    write_model(path, model, name, kind=kind, **options)
    return model


# Types of which a model of a single type, and a mix like those that Unsloth publishes, is written.
TYPES = [kind.name for kind in TENSOR_TYPES.values() if kind.is_quantized and kind.name not in ("Q1_0", "Q2_0")]


def write_types(path: Path, names: Sequence[str]) -> PreTrainedModel:
    """Write a Llama whose matrices have rows of whole blocks of these types, in turn. Returns it with their values."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2,
    )  # fmt: skip
    model, types = LlamaForCausalLM(config).eval(), [Type[name] for name in names]
    write_model(path, model, "llama-256", kind=lambda key: types[crc32(key.encode()) % len(types)])
    return model


def write_model(
    path: Path,
    model: PreTrainedModel,
    name: str,
    *,
    kind: Type | Kinds,
    alignment: int | None = None,
    named: str = "",
    split: str = "gpt-2",
    tensors_of_a_part: int = 0,
) -> None:
    """Write a model and the tests' tokenizer, like `write_gguf`. The model gets the values of the file.

    `name`: of the metadata in gguf_files.json. `named`: another architecture of the same tensors. `split`: name of the
    vocabulary's word split, or its kind. `tensors_of_a_part`: at most so many tensors stand in each part of the file.
    """
    kind_of: Kinds = (lambda _: kind) if isinstance(kind, Type) else kind
    architecture, fields, *tensors = _FIELDS[name]
    writer = gguf.GGUFWriter(path, named or architecture, split_max_tensors=tensors_of_a_part)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_name("A tiny one")
    for key, value in fields.items():
        writer.add_key_value(f"{writer.arch}.{key}", value, _value_type(value))
    for key, values in (tensors[0] if tensors else {}).items():
        writer.add_tensor(key, np.array(values, dtype=np.float32))
    add_vocabulary(writer, model.config.vocab_size, split)
    known = "granitemoe" if architecture == "granite_swa" else architecture  # a name that the package lacks
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == known)
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
        elif architecture == "granite_swa" and (leaf := _SWASH.get(key.split(".", 3)[-1])):
            pieces = iter([(f"=blk.{key.split('.')[2]}.{leaf}.weight", parameter.data)])
        elif name in HYBRIDS:
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


def _value_type(value: Any) -> gguf.GGUFValueType:
    """Return the type of a field; numbers have 32 bits."""
    return gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)


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


def _is_older(config: PretrainedConfig) -> bool:
    """True if the tests' file has keys and values of latents in one matrix, like files of before 2025."""
    return config.model_type == "deepseek_v2" and config.n_group is not None


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
