"""Ids that cannot be guessed."""

import secrets


def new_id(prefix: str, tag: str) -> str:
    """Return `prefix`, the server's `--id-tag`, and 24 random bytes in base64url."""
    return prefix + tag + secrets.token_urlsafe(24)
