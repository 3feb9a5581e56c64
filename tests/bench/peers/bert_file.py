"""Folder with sentence-transformers' files and random weights of BERT-base, and such a folder's GGUF file."""

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file

WORDS = ["rain", "bread", "house", "river", "green", "night", "music", "paper"]  # one token each
_FLOAT32 = ("position_embd", "token_types")  # in every file, as norms and biases: llama.cpp adds them unconverted
_SPECIAL = {"[PAD]": "pad", "[UNK]": "unk", "[CLS]": "bos", "[SEP]": "sep", "[MASK]": "mask"}


def write_bert_base(folder: Path) -> None:
    """Write the folder."""
    from transformers import BertConfig, BertModel, BertTokenizer  # their import takes seconds

    torch.manual_seed(0)
    BertModel(BertConfig()).save_pretrained(folder)
    vocab = {token: number for number, token in enumerate([*_SPECIAL, *WORDS])}
    BertTokenizer(vocab=vocab, model_max_length=512).save_pretrained(folder)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 768, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


def write_bert(folder: Path, file: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Write `file` with matrices of that type."""
    config = _read(folder / "config.json")
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.BERT])
    _add_settings(writer, config, _read(folder / "1_Pooling/config.json"))
    _add_vocabulary(writer, _read(folder / "tokenizer.json")["model"]["vocab"], config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:  # the pooler, which embeddings leave out
            continue
        own = gguf.GGMLQuantizationType.F32 if tensor.ndim == 1 or target.startswith(_FLOAT32) else kind
        writer.add_tensor(target, gguf.quants.quantize(tensor.float().numpy(), own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_settings(writer: gguf.GGUFWriter, config: dict[str, Any], pooling: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN if pooling["pooling_mode_mean_tokens"] else gguf.PoolingType.CLS)


def _add_vocabulary(writer: gguf.GGUFWriter, vocab: dict[str, int], vocab_size: int) -> None:
    """Add WordPiece's vocabulary as llama.cpp spells it: "▁" begins a word, nothing ("##" before) goes on with it."""
    tokens = [f"[unused{number}]" for number in range(vocab_size)]
    kinds = [gguf.TokenType.UNUSED] * vocab_size
    for token, number in vocab.items():
        special = token in _SPECIAL
        tokens[number] = token if special else token[2:] if token.startswith("##") else "▁" + token
        kinds[number] = gguf.TokenType.CONTROL if special else gguf.TokenType.NORMAL
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_type_count(2)
    for token, name in _SPECIAL.items():
        getattr(writer, f"add_{name}_token_id")(vocab[token])


def _read(path: Path) -> Any:
    return json.loads(path.read_text())
