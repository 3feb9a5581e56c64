"""Lines of a batch's files: JSON objects in OpenAI's form."""

import asyncio
import codecs
import secrets
from dataclasses import dataclass
from typing import Any, BinaryIO

from ....engine.errors import InvalidRequestError
from ...http.errors import Problem
from ...http.json_body import parse
from ...http.json_response import dumps, json_slices

MAX_ID_CHARS = 512
_PIECE_BYTES = 128 * 1024  # split at once, holding the GIL: 50 MiB take 0.2 s


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a batch."""

    custom_id: str
    body: dict[str, Any]


def read_line(text: bytes, *, endpoint: str) -> Line:
    """Parse the request in a line. Raises InvalidRequestError with a code."""
    try:
        fields = parse(text.removeprefix(codecs.BOM_UTF8))  # Windows' editors begin files with it
    except InvalidRequestError as exc:
        raise InvalidRequestError(str(exc).replace("the body", "the line"), code="invalid_json_line") from exc
    custom_id, body = _field(fields, "custom_id", str), _field(fields, "body", dict)
    if not 1 <= len(custom_id) <= MAX_ID_CHARS:
        raise InvalidRequestError(
            f"custom_id must have 1 to {MAX_ID_CHARS} characters", param="custom_id", code="invalid_custom_id"
        )
    if _field(fields, "method", str) != "POST":
        raise InvalidRequestError("method must be POST", param="method", code="invalid_method")
    if _field(fields, "url", str) != endpoint:
        raise InvalidRequestError(f"url must be the batch's endpoint, {endpoint}", param="url", code="mismatched_url")
    if body.get("stream"):
        raise InvalidRequestError("a batch has no streams; leave it out", param="body.stream", code="invalid_stream")
    return Line(custom_id, body)


def _field(fields: dict[str, Any], name: str, kind: type) -> Any:
    if fields.get(name) is None:
        raise InvalidRequestError(f"{name} is missing", param=name, code="missing_required_parameter")
    if not isinstance(fields[name], kind):
        type_name = "a string" if kind is str else "an object"
        raise InvalidRequestError(f"{name} must be {type_name}", param=name, code="invalid_type")
    return fields[name]


async def answer_line(custom_id: str, body: Any, *, status: int = 200) -> bytes:
    """Build the line of a request that was answered with this body."""
    head = dumps({"id": _new_id(), "custom_id": custom_id})[:-1].encode()
    middle = f',"response":{{"status_code":{status},"request_id":"{secrets.token_hex(16)}","body":'.encode()
    slices = []
    for slice in json_slices(body):
        slices.append(slice)
        await asyncio.sleep(0)  # let other tasks run
    return b"".join([head, middle, *slices, b'},"error":null}\n'])


async def refusal_line(custom_id: str, problem: Problem) -> bytes:
    """Build the line of a request that was answered with an error."""
    return await answer_line(custom_id, problem.envelope(), status=problem.status)


def unanswered_line(custom_id: str, *, code: str, message: str) -> bytes:
    """Build the line of a request that was never answered."""
    error = {"code": code, "message": message}
    return dumps({"id": _new_id(), "custom_id": custom_id, "response": None, "error": error}).encode() + b"\n"


def is_unanswered(line: bytes) -> bool:
    """True if this is a line of `unanswered_line`. Quotes within strings are escaped, so no other line has the text."""
    return b'"response":null' in line


def _new_id() -> str:
    return "batch_req_" + secrets.token_hex(16)


def line_error(exc: InvalidRequestError, number: int) -> dict[str, Any]:
    """Describe the error in a batch's form. Lines count from 1."""
    return {"code": exc.code, "line": number, "message": str(exc), "param": exc.param}


def longest_line(contents: BinaryIO) -> tuple[int, int]:
    """Return the number of non-blank lines, and the bytes of the longest line."""
    contents.seek(0)
    num_lines = longest = length = 0
    is_blank = True  # state of the last_line line of `length` bytes
    while piece := contents.read(_PIECE_BYTES):
        end, *lines = piece.split(b"\n")
        length, is_blank = length + len(end), is_blank and not end.strip()
        if lines:
            *whole, last_line = lines
            num_lines += (not is_blank) + sum(1 for line in whole if line.strip())
            longest = max(longest, length, *map(len, whole))
            length, is_blank = len(last_line), not last_line.strip()
    return num_lines + (not is_blank), max(longest, length)
