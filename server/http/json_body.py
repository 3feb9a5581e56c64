"""Bodies of requests: reads a JSON object, or refuses it with the reason. The result can be echoed, logged and encoded.

Refused with 400: invalid UTF-8 or JSON, NaN and infinities in any spelling, duplicate keys, lone surrogates, numbers of
absurd length, deep nesting, anything but an object. Refused with 413: more than the limit. Refused with 415: any
Content-Encoding. Content-Type is ignored.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

from starlette.requests import Request

from ...engine.errors import InvalidRequestError, SplitfuseError
from .errors import BodyTooLargeError, BodyTooSlowError, UnreadEncodingError

T = TypeVar("T")
MAX_DEPTH = 64
MAX_DIGITS = 64
MAX_KEY_CHARS = 128
DEADLINE_S = 30.0
# Key in a request's scope: the fields of its body, if another server may have to be asked.
FIELDS = "splitfuse.fields"
# Bytes of a refused body that are dropped before the answer: a client that is still writing does not read.
DROPPED_BYTES = 8 * 2**20


async def read_json(request: Request, *, max_bytes: int) -> dict[str, Any]:
    """Read the body of a POST in its turn. Raises InvalidRequestError, BodyTooLargeError, BodyTooSlowError."""
    body = await read_body(request, max_bytes=max_bytes, setting="--max-body-bytes", deadline_s=DEADLINE_S)
    await request.app.state.body_turns.wait(len(body))
    return parse(body)


async def read_body(request: Request, *, max_bytes: int, setting: str, deadline_s: float) -> bytes:
    """Read the bytes of a body. `setting` is the limit's name in errors. Raises BodyTooLargeError, BodyTooSlowError."""
    return await in_time(_read(request, max_bytes=max_bytes, setting=setting), deadline_s)


async def in_time(reading: Awaitable[T], deadline_s: float) -> T:
    """Await the reading of a body. Raises BodyTooSlowError."""
    try:
        async with asyncio.timeout(deadline_s):
            return await reading
    except TimeoutError as exc:
        raise BodyTooSlowError(f"the body did not arrive within {deadline_s:g} s") from exc


async def body_chunks(request: Request, *, max_bytes: int, setting: str) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives, at most `max_bytes`. Raises like `read_body`, and UnreadEncodingError."""
    error: SplitfuseError = BodyTooLargeError(
        f"the body is longer than {max_bytes} bytes; send less or raise {setting}"
    )
    encoding = ", ".join(request.headers.getlist("content-encoding")).strip().lower()
    if encoding not in ("", "identity"):
        error, max_bytes = UnreadEncodingError(encoding), -1
    declared = request.headers.get("content-length", "")
    is_waiting = "expect" in request.headers
    if declared.isdigit() and int(declared[:20]) > (max_bytes if is_waiting else max_bytes + DROPPED_BYTES):
        raise error
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes <= max_bytes:
            yield chunk
        elif num_bytes > max_bytes + DROPPED_BYTES:
            break
    if num_bytes > max_bytes:
        raise error


def parse(body: bytes) -> dict[str, Any]:
    """Parse the JSON object in these bytes. Raises InvalidRequestError."""
    try:
        value = _decode(body.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise InvalidRequestError(f"the body is not valid UTF-8 at byte {exc.start}") from exc
    except json.JSONDecodeError as exc:
        raise InvalidRequestError(f"the body is not valid JSON: {exc}") from exc
    except RecursionError as exc:
        raise InvalidRequestError(f"the body nests deeper than {MAX_DEPTH} levels") from exc
    if not isinstance(value, dict):
        raise InvalidRequestError('the body must be a JSON object, as in {"prompt": "Once"}')
    if any(len(key) > MAX_KEY_CHARS for key in value):
        raise InvalidRequestError(f"a field's name is longer than {MAX_KEY_CHARS} characters")
    # Both checks walk the whole value, so they run only if the bytes can contain a fault.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if b"\\u" in body:
        _check_strings(value)
    return value


async def _read(request: Request, *, max_bytes: int, setting: str) -> bytes:
    return b"".join([chunk async for chunk in body_chunks(request, max_bytes=max_bytes, setting=setting)])


def _refuse_constant(text: str) -> float:
    raise InvalidRequestError(f"{text} is not a JSON number; all numbers must be finite")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidRequestError("a number is too large; all numbers must be finite")
    return value


def _short_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise InvalidRequestError(f"an integer of {len(text)} digits; at most {MAX_DIGITS} are read")
    return int(text)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise InvalidRequestError("an object holds the same key twice; which one is meant?")
    return value


# One decoder for all: json.loads with options creates one per call, 3 us of the 22 that a small request takes to read.
_decode = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, parse_int=_short_int, object_pairs_hook=_without_duplicates
).decode


def _check_depth(value: object) -> None:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        containers = [item.values() if isinstance(item, dict) else item for item in level]
        level = [child for item in containers for child in item if isinstance(child, (dict, list))]  # type: ignore[attr-defined]
        if not level:
            return
    raise InvalidRequestError(f"the body nests deeper than {MAX_DEPTH} levels")


def _check_strings(value: dict[str, Any]) -> None:
    for name, child in [(None, list(value)), *value.items()]:
        try:
            json.dumps(child, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as exc:
            where = f"{name} holds" if name else "a key holds"
            raise InvalidRequestError(f"{where} a lone surrogate; send valid Unicode", param=name) from exc
