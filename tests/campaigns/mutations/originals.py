"""Originals: small models of every form in which a model comes, whose files are mutated."""

import itertools
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf_files import TYPES, write_gguf, write_types
from tiny_models import save_model

_TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<bos>",
    "eos_token": {"content": "<eos>", "special": True},
    "chat_template": _TEMPLATE,
    "additional_special_tokens": ["<s0>", "<s1>"],
}


@dataclass(frozen=True)
class Original:
    """Model whose files are mutated. `path`: its folder, or its GGUF file."""

    path: Path
    files: tuple[str, ...]  # names in `folder`

    @property
    def folder(self) -> Path:
        """Folder that holds all files of the model."""
        return self.path if self.path.is_dir() else self.path.parent

    def copied_to(self, target: Path) -> Path:
        """Copy the files of the model. Returns its path there."""
        shutil.copytree(self.folder, target)
        return target if self.path.is_dir() else target / self.path.name


def folder_models(folder: Path, names: Iterable[str]) -> list[Original]:
    """Write models of CONFIGS with safetensors: each second one in shards with an index."""
    written = []
    for index, name in enumerate(names):
        path = folder / name
        save_model(name, path, shards=1 + index % 2)
        (path / "tokenizer_config.json").write_text(json.dumps(_TOKENIZER_CONFIG))
        if index % 2:
            (path / "chat_template.jinja").write_text(_TEMPLATE)
        generation = {"bos_token_id": 0, "eos_token_id": [1, 2], "temperature": 0.7, "top_p": 0.9, "top_k": 40}
        (path / "generation_config.json").write_text(json.dumps(generation))
        written.append(Original(path, tuple(sorted(file.name for file in path.iterdir()))))
    return written


def gguf_models(folder: Path, names: Iterable[str]) -> list[Original]:
    """Write GGUF models of CONFIGS and HYBRIDS, types of small blocks in turn, one with all types, and one with a
    SentencePiece vocabulary.
    """
    kinds = itertools.cycle(
        (Type.Q8_0, Type.Q4_0, Type.F16, Type.Q5_1, Type.BF16, Type.F32, Type.MXFP4, Type.NVFP4, Type.IQ4_NL)
    )
    written = []
    for name in names:
        path = folder / f"{name}-gguf" / "model.gguf"
        path.parent.mkdir(parents=True)
        write_gguf(path, name, kind=next(kinds))
        written.append(Original(path, (path.name,)))
    for name, write in (("sentencepiece", _write_sentencepiece), ("types", lambda path: write_types(path, TYPES))):
        path = folder / f"{name}-gguf" / "model.gguf"
        path.parent.mkdir()
        write(path)
        written.append(Original(path, (path.name,)))
    return written


def _write_sentencepiece(path: Path) -> None:
    """Write a llama whose tokens are bytes and a few words with scores."""
    hidden, rows, rng = 32, 512, np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_feed_forward_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    words = sorted({word[:end] for word in ("▁once", "▁upon", "▁time", "ab") for end in range(1, len(word) + 1)})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokens += [f"<extra{number}>" for number in range(rows - len(tokens))]
    normal, byte, control = gguf.TokenType.NORMAL, gguf.TokenType.BYTE, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([float(-index) for index in range(rows)])
    kinds = [control] * 3 + [byte] * 256 + [normal] * len(words)
    writer.add_token_types(kinds + [gguf.TokenType.USER_DEFINED] * (rows - len(kinds)))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(_TEMPLATE)
    shapes = {
        "token_embd": (rows, hidden), "output_norm": (hidden,), "blk.0.attn_norm": (hidden,),
        "blk.0.attn_q": (hidden, hidden), "blk.0.attn_k": (16, hidden), "blk.0.attn_v": (16, hidden),
        "blk.0.attn_output": (hidden, hidden), "blk.0.ffn_norm": (hidden,), "blk.0.ffn_gate": (64, hidden),
        "blk.0.ffn_up": (64, hidden), "blk.0.ffn_down": (hidden, 64),
    }  # fmt: skip
    for name, shape in shapes.items():
        kind = Type.F32 if len(shape) == 1 else Type.Q8_0
        values = rng.normal(0, 0.2, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
