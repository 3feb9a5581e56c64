"""Parameters in the query and headers that several routes have, and our own error sentences for any of them."""

from typing import Annotated, Any

from fastapi import Header
from pydantic import BeforeValidator, ValidationError, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from ...engine.errors import InvalidRequestError
from ..jobs.idempotency import MAX_CHARS, IdempotencyKey
from .request_model import RequestModel


def says(sentence: str) -> WrapValidator:
    """Replace pydantic's sentences about a parameter, as in `Annotated[float, Field(ge=0), says("must be …")]`."""

    def validate(value: str, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as exc:
            raise PydanticCustomError("parameter", "{sentence}", {"sentence": sentence}) from exc

    return WrapValidator(validate)


def _digits(text: str) -> str:
    if not (text.isascii() and text.isdigit()):
        raise ValueError  # pydantic takes "+1", " 1" and "1.0", too
    return text


DIGITS = BeforeValidator(_digits)  # precedes the validation of an int
EventId = Annotated[str | None, WithJsonSchema({"type": "integer", "minimum": 0})]  # read by `event_id`
IdempotencyHeader = Annotated[
    list[str] | None,  # a second header is an error, which `key_of` raises
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_CHARS}),  # checked by IdempotencyKey.read
    Header(
        alias="Idempotency-Key",
        description="1 to 255 visible characters. Repeating a request with its key returns the same job.",
    ),
]
REPLAYED = {"Idempotent-Replayed": "true"}  # headers of the answer to a known idempotency key


def key_of(request: Request, header: list[str] | None, body: RequestModel) -> IdempotencyKey | None:
    """Return the request's idempotency key, if it has one. Raises InvalidRequestError."""
    if header is None:
        return None
    if len(header) > 1:
        raise InvalidRequestError("send one Idempotency-Key; this request has several", param="Idempotency-Key")
    return IdempotencyKey.read(header[0], path=request.url.path, body=body.as_sent)


def event_id(text: str, *, name: str) -> int:
    """Parse the id of the last event that a reader has. Raises InvalidRequestError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequestError(f"{name} must be the id of an event, an integer of at least 0", param=name)
    return int(text)
