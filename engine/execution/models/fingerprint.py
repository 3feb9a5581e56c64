"""Fingerprint of everything that determines a model's tokens: models that differ in it may answer differently."""

import hashlib
from pathlib import Path

from ...config import EngineConfig

# Files besides the weights that determine the tokens.
_WHOLE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# Weights can be hundreds of GB, so only the beginning, which lists the tensors, and _NUM_PLACES samples are hashed.
_HEAD_BYTES = 2**20
_GGUF_HEAD_BYTES = 16 * 2**20  # holds the vocabulary and the chat template, too
_NUM_PLACES, _PLACE_BYTES = 64, 4096


def fingerprint(folder: Path, config: EngineConfig, *, dtype: str) -> str:
    """Return the fingerprint of the model in this folder or GGUF file, served with this config and dtype."""
    hashed = hashlib.sha256()
    numerics = (dtype, config.quantization, config.quantization_activations, config.kv_cache_dtype)
    for part in (*numerics, config.chat_template, *([config.rope_scaling] if config.rope_scaling else [])):
        hashed.update(repr(part).encode())
    if config.load_format == "dummy":
        hashed.update(str(config.seed).encode())
    for name in _WHOLE:
        if (path := folder / name).exists():
            hashed.update(name.encode() + path.read_bytes())
    for path in sorted(folder.glob("*.safetensors")) if config.load_format != "dummy" else ():
        _add_weights(hashed, path, head_bytes=_HEAD_BYTES)
    if folder.is_file():
        _add_weights(hashed, folder, head_bytes=_GGUF_HEAD_BYTES)
    return hashed.hexdigest()[:32]


def _add_weights(hashed: "hashlib._Hash", path: Path, *, head_bytes: int) -> None:
    num_bytes = path.stat().st_size
    hashed.update(f"{path.name} {num_bytes}".encode())
    with path.open("rb") as file:
        hashed.update(file.read(head_bytes))
        for place in range(_NUM_PLACES):
            file.seek(num_bytes * place // _NUM_PLACES)
            hashed.update(file.read(_PLACE_BYTES))
