"""Ids that cannot be guessed."""

import re
import secrets

_FORM = re.compile(r"[A-Za-z0-9_.~-]{1,200}")


def new_id(prefix: str, tag: str) -> str:
    """Return `prefix`, the server's `--id-tag`, and 24 random bytes in base64url."""
    return prefix + tag + secrets.token_urlsafe(24)


def has_form(text: str) -> bool:
    """True if the text can be an id; no store is asked for any other."""
    return _FORM.fullmatch(text) is not None
