"""API keys. Logs, the result store and tenants know them only by their SHA-256 digests."""

import hashlib
import os
from pathlib import Path

from ...engine.errors import ConfigError


def digest(key: str) -> str:
    """Return the digest of a key, as hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_key_file(path: Path) -> tuple[str, ...]:
    """Read one key per line, skipping empty lines and comments. Raises ConfigError, which names no key."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="ascii").splitlines()]
    except OSError as exc:
        raise ConfigError(f"--api-key-file {path}: cannot be read ({exc.strerror})") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"--api-key-file {path}: a key must be visible ASCII characters; this holds others") from exc
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"--api-key-file {path} holds no key: write one per line, or leave the flag out")
    return keys


def is_open_to_others(path: Path) -> bool:
    """True if every user of the machine can read the file."""
    return os.name != "nt" and bool(path.stat().st_mode & 0o004)
