"""What a model's tokens follow from, as one short text: two that differ may answer the same prompt differently."""

import hashlib
from pathlib import Path

from ..config import EngineConfig

# Files that decide, beside the weights.
_WHOLE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# Of weights, which can be hundreds of GB: the beginning, where a file lists its tensors, and so many places behind it.
_HEAD_BYTES = 2**20
_NUM_PLACES, _PLACE_BYTES = 64, 4096


def fingerprint(folder: Path, config: EngineConfig, *, dtype: str) -> str:
    """Of the model in this folder, served so."""
    hashed = hashlib.sha256()
    numerics = (dtype, config.quantization, config.quantization_activations, config.kv_cache_dtype)
    for part in (*numerics, config.chat_template):
        hashed.update(repr(part).encode())
    if config.load_format == "dummy":
        hashed.update(str(config.seed).encode())
    for name in _WHOLE:
        if (path := folder / name).exists():
            hashed.update(name.encode() + path.read_bytes())
    for path in sorted(folder.glob("*.safetensors")) if config.load_format != "dummy" else ():
        _add_weights(hashed, path)
    return hashed.hexdigest()[:32]


def _add_weights(hashed: "hashlib._Hash", path: Path) -> None:
    num_bytes = path.stat().st_size
    hashed.update(f"{path.name} {num_bytes}".encode())
    with path.open("rb") as file:
        hashed.update(file.read(_HEAD_BYTES))
        for place in range(_NUM_PLACES):
            file.seek(num_bytes * place // _NUM_PLACES)
            hashed.update(file.read(_PLACE_BYTES))
