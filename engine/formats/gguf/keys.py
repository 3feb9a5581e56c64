"""Keys: a GGUF's metadata about its model. Imports no torch."""

from array import array
from typing import Any

from ...errors import ConfigError
from .file import GgufFile

_MAX_ROPE_FACTORS = 1024


class Keys:
    """Metadata of a file under its architecture's prefix."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._prefix = str(file.metadata.get("general.architecture"))

    def __call__(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self._prefix}.{key}", default)

    def number(self, key: str) -> int | float | None:
        """Return the number under this key. Raises ConfigError if the value is no number."""
        value = self(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{self._prefix}.{key} must be a number")
        return value

    def largest(self, key: str) -> Any:
        """Return the value under this key, of a list for each layer the largest: the others are 0."""
        value = self(key)
        return max(value, default=0) if isinstance(value, memoryview) else value

    def vector(self, name: str) -> list[float]:
        """Return the values of a tensor with a rope's divisors. Raises ConfigError if it is missing."""
        info = self.file.tensors.get(name)
        if info is None or info.type.name != "F32" or len(info.shape) != 1 or info.shape[0] > _MAX_ROPE_FACTORS:
            raise ConfigError(f"{self.file.path}: {name} is not a short vector of float32; fetch the file again")
        values = array("f")
        with info.path.open("rb") as data:
            data.seek(info.offset)
            values.frombytes(data.read(info.num_bytes))
        return values.tolist()
