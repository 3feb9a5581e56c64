"""GgufSource: tensors of a GGUF file by checkpoint name, quantized like in the file, or as floats.

A tensor is read when it is taken, into memory of its own, like from safetensors files (weights.py).
"""

import threading
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight
from ...errors import ConfigError
from ..checkpoint import version_of
from ..tensor_entry import WIDE
from .blocks import floats, quantized
from .file import read_gguf
from .places import Place, places


class GgufSource:
    """WeightSource of a GGUF file. Raises ConfigError if the file is not whole."""

    def __init__(self, path: Path, *, dtype: torch.dtype) -> None:
        self._header = read_gguf(path)
        self._places = places(self._header)
        self._dtype = dtype
        self._files = {file.path: file.path.open("rb") for file in self._header.files}
        self._lock = threading.Lock()  # guards the files' positions
        self._taken: set[str] = set()

    def check(self) -> None:
        """Raise ConfigError if the file has changed since its header was read."""
        for header in self._header.files:
            if version_of(header.path) != header.version:
                raise ConfigError(f"{header.path} was changed while it was read; start again when it is whole")

    def close(self) -> None:
        """Close the file."""
        for file in self._files.values():
            file.close()

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        place = self._place(name)
        file_shape = tuple(reversed(shape)) if place.is_transposed else shape
        dtype = torch.float32 if place.adds_one or name.endswith(WIDE) else self._dtype
        tensor = floats(self._rows(name, place, file_shape), place.info.type.name, dtype).view(file_shape)
        if place.adds_one:
            tensor = (tensor - 1.0).to(self._dtype)
        if place.is_negated_exp:
            tensor = (-tensor).log()
        return tensor.T if place.is_transposed else tensor

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
        place = self._place(name)
        if not place.info.type.is_quantized or len(shape) != 2 or place.adds_one:
            return None
        return quantized(self._rows(name, place, shape), place.info.type.name)

    def has(self, name: str) -> bool:
        return name in self._places

    def unread(self) -> list[str]:
        return sorted(self._places.keys() - self._taken)

    def _place(self, name: str) -> Place:
        if name not in self._places:
            raise ConfigError(f"{self._header.path} has no tensor for {name!r}; fetch the file again")
        return self._places[name]

    def _rows(self, name: str, place: Place, shape: tuple[int, ...]) -> Tensor:
        """Read the bytes of a matrix, uint8 [N, bytes], or of a vector, which is one row."""
        stored, (first, num_bytes) = place.shape, place.span
        if stored != shape and not (place.is_reshaped and prod(stored) == prod(shape)):
            raise ConfigError(
                f"{self._header.path}: {place.info.name} has shape {list(stored)}, but its metadata needs {list(shape)}"
            )
        self._taken.add(name)
        whole = torch.empty(num_bytes, dtype=torch.uint8)
        with self._lock:
            file = self._files[place.info.path]
            file.seek(first)
            num_read = file.readinto(whole.numpy().data)
        if num_read != num_bytes:
            raise ConfigError(f"{place.info.path} ends within {place.info.name}; fetch the file again")
        if not place.num_rotated_heads:
            return whole.view(shape[0] if len(shape) > 1 else 1, -1)
        # Undo the interleaving of a matrix's rows, or of a bias's elements.
        rows = whole.view(place.num_rotated_heads, shape[0] // place.num_rotated_heads // 2, 2, -1).transpose(1, 2)
        return rows.reshape(shape[0] if len(shape) > 1 else 1, -1)
