"""GGUF file in bfloat16 from a folder's safetensors, unchanged except for llama's rope order. Needs gguf, numpy.

`python gguf_file.py FOLDER FILE`. The made-up vocabulary goes in, as OpenVINO needs one; prompts are ids.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3}


def convert(folder: Path, file: Path) -> None:
    """Write `file`."""
    config = json.loads((folder / "config.json").read_text())
    arch = _ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch])
    _add_settings(writer, config)
    _add_vocabulary(writer, json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, tensor in _tensors(folder / "model.safetensors"):
        target = names.get_name(name, try_suffixes=(".weight",))
        if config["model_type"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = _pairs_beside_each_other(tensor, config["head_dim"])
        if tensor.ndim == 1:  # llama.cpp's norms take float32 only
            writer.add_tensor(target, (tensor.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(target, tensor.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_settings(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    rope = config.get("rope_parameters", config)
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def _add_vocabulary(writer: gguf.GGUFWriter, vocab: dict[str, int]) -> None:
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    # Without a special token OpenVINO GenAI 2026.4 fails to compile its tokenizer ("ReadValue contains dead weak ptr").
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)


def _tensors(file: Path) -> list[tuple[str, Any]]:
    """Yield name and bits (uint16) of every tensor, mapped from the file."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    bits = np.memmap(file, np.uint8, "r", offset=8 + size)
    header.pop("__metadata__", None)
    return [
        (name, bits[slice(*entry["data_offsets"])].view(np.uint16).reshape(entry["shape"]))
        for name, entry in header.items()
    ]


def _pairs_beside_each_other(tensor: Any, head_dim: int) -> Any:
    """Return a head's rows in llama.cpp's order: llama.cpp rotates neighbours, Hugging Face's llama halves."""
    heads = tensor.reshape(-1, 2, head_dim // 2, tensor.shape[1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(tensor.shape)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
