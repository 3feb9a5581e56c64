"""API keys. Logs, the result store and tenants know them only by their SHA-256 digests."""

import hashlib
from pathlib import Path

from ...engine.errors import ConfigError
from ...engine.private_file import check_secret


def digest(key: str) -> str:
    """Return the digest of a key, as hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_key_file(path: Path, *, setting: str) -> tuple[str, ...]:
    """Read one key per line, skipping empty lines and comments. Raises ConfigError, which names no key."""
    check_secret(path, setting=setting)
    try:
        lines = [line.strip() for line in path.read_text(encoding="ascii").splitlines()]
    except OSError as exc:
        raise ConfigError(f"{setting} {path}: cannot be read ({exc.strerror})") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{setting} {path}: a key must be visible ASCII characters; this holds others") from exc
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"{setting} {path} holds no key: write one per line, or leave the flag out")
    return keys
