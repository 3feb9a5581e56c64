"""API keys are known inside by their SHA-256 digests only: in logs, in the result store and as tenants."""

import hashlib


def digest(key: str) -> str:
    """Of a key, as hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
