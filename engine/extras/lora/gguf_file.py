"""GGUF adapters as llama.cpp's converter writes them: `blk.0.attn_q.weight.lora_a` and `.lora_b`."""

import hashlib
import math
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ConfigError
from ...formats.gguf import architectures, blocks
from ...formats.gguf.file import read_gguf
from .matrices import Matrices, paired

_NAME = re.compile(r"blk\.(\d{1,5})\.(\w+)\.weight\.lora_([ab])")


def read_file(path: Path) -> Matrices:
    """Read an adapter. Raises ConfigError that names the fault in its file."""
    file = read_gguf(path)
    kind = file.metadata.get("general.type"), file.metadata.get("adapter.type")
    if kind != ("adapter", "lora"):
        raise ConfigError(f"{path} is no adapter (LoRA): its general.type and adapter.type are {kind}")
    architecture = architectures.architecture_of(file, lora=True)
    if architecture.transposed:
        raise ConfigError(f"{path}: GGUF adapters of {architecture.family} are not built; peft's folder is")
    alpha = file.metadata.get("adapter.lora.alpha", 0.0)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ConfigError(f"{path}: adapter.lora.alpha must be a number")
    names, halves = architecture.names, dict[str, dict[str, Tensor]]()
    interleaved = set()
    data = path.read_bytes()
    for info in file.tensors.values():
        match = _NAME.fullmatch(info.name)
        if match is None or match[2] not in names or "{}" in names[match[2]]:
            raise ConfigError(
                f"{path}: adapters cannot change {info.name.removesuffix('.lora_a').removesuffix('.lora_b')}"
            )
        name = f"{names['blk']}.{match[1]}.{names[match[2]]}"
        halves.setdefault(name, {})[match[3]] = _floats(data, info)
        if architecture.interleaves_heads and match[2] in ("attn_q", "attn_k"):
            interleaved.add(name)
    # llama.cpp's factor: alpha / r, or 1 without an alpha.
    scales = {name: alpha / max(len(own["a"]), 1) if alpha and "a" in own else 1.0 for name, own in halves.items()}
    pairs = paired(path, halves, scales, interleaved=interleaved)
    return Matrices(pairs, hashlib.sha256(data).hexdigest())


def _floats(data: bytes, info: Any) -> Tensor:
    stored = data[info.offset : info.offset + info.num_bytes]
    rows = torch.frombuffer(bytearray(stored), dtype=torch.uint8).view(info.shape[0], -1)
    values: Tensor = blocks.floats(rows, info.type.name, torch.float32)
    return values.view(info.shape)
