"""Building blocks of llguidance's Lark."""

import json
import re
from collections.abc import Mapping
from typing import Any


def literal(text: str, special_ids: Mapping[str, int]) -> str:
    """Return a text as Lark; its special tokens become token ids. "" for an empty text."""
    if not special_ids:
        return json.dumps(text) if text else ""
    pieces = re.split(f"({'|'.join(map(re.escape, special_ids))})", text)
    return " ".join(
        f"<[{special_ids[piece]}]>" if piece in special_ids else json.dumps(piece) for piece in pieces if piece
    )


def text_up_to(end: str, name: str, *, of: str = "/(?s:.*)/", special_ids: Mapping[str, int]) -> str:
    """Return a rule of this name: any text up to the first `end`, included."""
    if special_ids and re.match("|".join(map(re.escape, special_ids)), end):  # no text holds a special token
        return f"{name}: {of} {literal(end, special_ids)}"
    return f"{name}[suffix={json.dumps(end)}]: {of}"


def json_value(schema: Any) -> str:
    """Return an expression for JSON that fits the schema."""
    # The two colons and the equals sign of GBNF would make the whole grammar look like GBNF.
    return "%json " + json.dumps(schema).replace("::=", "\\u003a\\u003a=")
