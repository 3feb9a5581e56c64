"""JSON as bytes: compact and pure ASCII, so that no string can fail to encode.

A large value is serialised slice by slice. An iterator in it is a list whose items are created during serialisation.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from starlette.responses import JSONResponse

# json.dumps writes about 30 MB/s, so a slice holds the loop for about 3 ms.
SLICE_BYTES = 64 * 1024
# Items of a list serialised at once: with 20 logprobs each, one slice.
ITEMS_AT_ONCE = 32


def dumps(value: object) -> str:
    """Return compact JSON, with everything beyond ASCII escaped. Raises ValueError for NaN and infinities."""
    return _encode(value)


def json_slices(value: object) -> Iterator[bytes]:
    """Yield the bytes of `dumps(value)` in slices of about SLICE_BYTES, at least one, each serialised on demand."""
    texts: list[str] = []
    num_bytes = 0
    for text in _texts(value):
        texts.append(text)
        num_bytes += len(text)
        if num_bytes >= SLICE_BYTES:
            yield "".join(texts).encode("ascii")
            texts, num_bytes = [], 0
    if texts:
        yield "".join(texts).encode("ascii")


def _texts(value: object) -> Iterator[str]:
    """Yield the output of `dumps` in short texts."""
    if isinstance(value, dict) and value:
        opening = "{"
        for key, child in value.items():
            yield f"{opening}{dumps(key)}:"
            yield from _texts(child)
            opening = ","
        yield "}"
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        opening = "["
        for child in value:
            yield opening
            yield from _texts(child)
            opening = ","
        yield "]"
    elif isinstance(value, (list, Iterator)):
        yield from _list_texts(iter(value))
    else:
        yield dumps(value)


def _list_texts(items: Iterator[object]) -> Iterator[str]:
    opening = "["
    while batch := list(islice(items, ITEMS_AT_ONCE)):
        yield opening + dumps(batch)[1:-1]
        opening = ","
    yield "]" if opening == "," else "[]"


def _listed(value: object) -> list[object]:
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


# One encoder for all: json.dumps with options creates one per call, 3.8 us for a small object instead of 2.8.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_listed).encode
# Serialises a string like `dumps`; an f-string around it takes 0.1 us.
quoted = json.encoder.encode_basestring_ascii


class JsonResponse(JSONResponse):
    """A JSON answer serialised by `dumps`."""

    def render(self, content: Any) -> bytes:
        """Serialise the body."""
        return dumps(content).encode("ascii")
