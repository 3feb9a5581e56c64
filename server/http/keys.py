"""API keys. Logs, the result store and tenants know them only by their SHA-256 digests."""

import hashlib


def digest(key: str) -> str:
    """Return the digest of a key, as hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
