"""Keys within JSON pointers (RFC 6901)."""


def escaped(key: str) -> str:
    """Escape a key for a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def unescaped(key: str) -> str:
    """Return the key that a part of a JSON pointer names."""
    return key.replace("~1", "/").replace("~0", "~")
