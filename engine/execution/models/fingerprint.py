"""Fingerprint of everything that determines a model's tokens: models that differ in it may answer differently."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...config import EngineConfig
from ...formats.gguf_files import parts_of

if TYPE_CHECKING:
    import torch

# Files besides the weights that determine the tokens.
_WHOLE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# Weights can be hundreds of GB, so only the beginning, which lists the tensors, and _NUM_PLACES samples are hashed.
_HEAD_BYTES = 2**20
_GGUF_HEAD_BYTES = 16 * 2**20  # holds the vocabulary and the chat template, too
_NUM_PLACES, _PLACE_BYTES = 64, 4096
_NUM_VALUES = 4096  # hashed of each tensor of an update


def fingerprint(weights: "Path | Mapping[str, torch.Tensor]", config: EngineConfig, *, dtype: "torch.dtype") -> str:
    """Return the fingerprint of a model with these weights: a folder, a GGUF file, or tensors by name."""
    hashed = hashlib.sha256()
    numerics = (str(dtype), config.quantization, config.quantization_activations, config.kv_cache_dtype)
    for part in (*numerics, config.chat_template, *filter(None, (config.rope_scaling, config.tokenizer))):
        hashed.update(repr(part).encode())
    if not isinstance(weights, Path):
        for name, tensor in sorted(weights.items()):
            _add_tensor(hashed, name, tensor)
        return hashed.hexdigest()[:32]
    if config.load_format == "dummy":
        hashed.update(str(config.seed).encode())
    for name in _WHOLE:
        if (path := weights / name).exists():
            hashed.update(name.encode() + path.read_bytes())
    for path in sorted(weights.glob("*.safetensors")) if config.load_format != "dummy" else ():
        hashed.update(path.name.encode())
        _add_file(hashed, path, head_bytes=_HEAD_BYTES)
    for path in parts_of(weights) if weights.is_file() else ():
        _add_file(hashed, path, head_bytes=_GGUF_HEAD_BYTES)
    return hashed.hexdigest()[:32]


def _add_file(hashed: "hashlib._Hash", path: Path, *, head_bytes: int) -> None:
    num_bytes = path.stat().st_size
    hashed.update(str(num_bytes).encode())
    with path.open("rb") as file:
        hashed.update(file.read(head_bytes))
        for place in range(_NUM_PLACES):
            file.seek(num_bytes * place // _NUM_PLACES)
            hashed.update(file.read(_PLACE_BYTES))


def _add_tensor(hashed: "hashlib._Hash", name: str, tensor: "torch.Tensor") -> None:
    hashed.update(f"{name} {tensor.dtype} {[*tensor.shape]}".encode())
    values = tensor.detach().flatten()[:: max(1, tensor.numel() // _NUM_VALUES)]
    hashed.update(repr(values.tolist()).encode())
