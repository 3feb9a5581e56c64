"""FileHashes: SHA-256 of whole files, remembered on disk by path, inode, size and time of change.

Weights of 100 GB take a minute or two to read, so a file is hashed once per change, whatever processes come and go.
"""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...formats.checkpoint import version_of
from ...private_file import create_private, replace_own

_MAX_FILES = 4096


class FileHashes:
    """Hashes of files. `memory`: the file that remembers them; what cannot be read or written there is computed."""

    def __init__(self, memory: Path | None = None) -> None:
        self._memory = memory or _default_memory()

    def sha256(self, path: Path) -> str:
        """Return the file's hash in hexadecimal."""
        path = path.resolve()
        known, version = self._read(), list(version_of(path))
        found = known.get(str(path))
        if isinstance(found, list) and len(found) == 2 and found[0] == version and isinstance(found[1], str):
            return found[1]
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if list(version_of(path)) == version:
            self._write({**known, str(path): [version, digest]})
        return digest

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            known = json.loads(self._memory.read_text(encoding="utf-8")) if self._memory.is_file() else None  # no pipe
            if isinstance(known, dict):
                return known
        return {}

    def _write(self, known: dict[str, Any]) -> None:
        """Replace the file at once: readers see the old one or the new one. Another program's file stays."""
        draft = self._memory.with_name(f"{self._memory.name}.{os.getpid()}")
        with contextlib.suppress(OSError, RuntimeError, ConfigError):
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(create_private(draft, setting="cache of hashes"), "w", encoding="utf-8") as file:
                newest = dict(list(known.items())[-_MAX_FILES:])
                json.dump({"splitfuse": "hashes", **newest}, file, separators=(",", ":"))
            replace_own(draft, self._memory)


def _default_memory() -> Path:
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home folder
        return Path(os.devnull, "hashes.json")
    return Path(root, "splitfuse", "file_hashes.json")
