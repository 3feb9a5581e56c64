"""Requests to /v1/files and /v1/batches: bodies, forms and queries."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from ....engine.errors import InvalidRequestError
from ...api.request_model import RequestModel
from ...http.json_body import read_json
from ...service import service_of
from .batch import NewBatch

MAX_WINDOW_S = 30 * 86_400
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TEXT = {"type": "string"}
UPLOAD = {
    "type": "object",
    "properties": {
        "file": _TEXT | {"format": "binary", "description": "JSON objects, one per line."},
        "purpose": {"enum": ["batch"]},
        "expires_after[anchor]": {"enum": ["created_at"]},
        "expires_after[seconds]": {"type": ["string", "integer"], "description": "Seconds to keep the file."},
    },
    "required": ["file", "purpose"],
    "additionalProperties": False,
}
_MAX_PAIRS, _MAX_KEY_CHARS, _MAX_VALUE_CHARS = 16, 64, 512


def _metadata(value: dict[str, Any]) -> dict[str, str]:
    fits = len(value) <= _MAX_PAIRS and all(
        len(key) <= _MAX_KEY_CHARS and isinstance(text, str) and len(text) <= _MAX_VALUE_CHARS
        for key, text in value.items()
    )
    if not fits:
        limits = f"{_MAX_PAIRS} strings of {_MAX_VALUE_CHARS} characters, with keys of {_MAX_KEY_CHARS}"
        raise PydanticCustomError("metadata", f"takes at most {limits}")
    return value


Metadata = Annotated[dict[str, Any], AfterValidator(_metadata)]


def _window(text: str) -> str:
    if _seconds(text) is None:
        raise PydanticCustomError("window", 'must be a time such as "24h" or "90m", at most 30 days')
    return text


def _seconds(window: str) -> int | None:
    """Return the seconds of a completion window, None if its text is not valid."""
    match = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", window)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else MAX_WINDOW_S + 1
    return seconds if seconds <= MAX_WINDOW_S else None


class ExpiresAfter(RequestModel):
    """Expiry of files."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=1)]


class BatchRequest(RequestModel):
    """A file of requests to answer in the background."""

    example: ClassVar = {
        "input_file_id": "file-…",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    input_file_id: str
    endpoint: Literal[
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/generate"
    ]
    completion_window: Annotated[str, AfterValidator(_window), Field(description="24h, 90m; at most 30d.")]
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None

    @classmethod
    async def from_request(cls, request: Request) -> Self:
        """Like RequestModel.from_request, but a batch names no model. Raises like `read` and `read_json`."""
        return cls.read(await read_json(request, max_bytes=service_of(request).settings.max_body_bytes))

    def new_batch(self, *, file_ttl: float, defaults: Mapping[str, Any]) -> NewBatch:
        """Return the batch to create, within the server's limit. `defaults`: values of fields that lines lack."""
        window_s = _seconds(self.completion_window)
        assert window_s is not None, "checked"
        ttl_s = file_ttl if self.output_expires_after is None else self.output_expires_after.seconds
        return NewBatch(
            endpoint=self.endpoint,
            input_file_id=self.input_file_id,
            completion_window=self.completion_window,
            window_s=window_s,
            metadata=self.metadata,
            files_expire_after=min(ttl_s, file_ttl),
            defaults=defaults,
        )


def uploaded(form: FormData) -> tuple[UploadFile, float | None]:
    """Return the uploaded file and its lifetime in seconds. Raises InvalidRequestError."""
    field_names = {"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"}
    for name in sorted(form.keys() - field_names):
        raise InvalidRequestError(f"unknown field {name[:100]!r}", param=name[:100])
    for name in ("file", "purpose"):
        if name not in form:
            raise InvalidRequestError(f"{name} is missing", param=name)
    if form["purpose"] != "batch":
        raise InvalidRequestError("purpose must be batch: files have no other use here", param="purpose")
    if form.get("expires_after[anchor]", "created_at") != "created_at":
        raise InvalidRequestError("expires_after[anchor] must be created_at", param="expires_after[anchor]")
    file, seconds = form["file"], form.get("expires_after[seconds]")
    if seconds is not None and not (isinstance(seconds, str) and re.fullmatch(r"[1-9][0-9]{0,9}", seconds)):
        raise InvalidRequestError("must be a number of seconds", param="expires_after[seconds]")
    if isinstance(file, str):
        raise InvalidRequestError("file needs a file name, as `curl -F file=@FILE` sends it", param="file")
    return file, None if seconds is None else float(seconds)
