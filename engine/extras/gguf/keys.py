"""Keys: what a GGUF's metadata says of its model. Imports no torch."""

from typing import Any

from ...errors import ConfigError
from .file import GgufFile


class Keys:
    """A file's metadata under its architecture's prefix."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._prefix = str(file.metadata.get("general.architecture"))

    def __call__(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self._prefix}.{key}", default)

    def number(self, key: str) -> int | float | None:
        """Raises ConfigError where it is none."""
        value = self(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{self._prefix}.{key} must be a number")
        return value
