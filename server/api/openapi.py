"""OpenAPI texts of a route: its body, parameters, statuses and media types, event streams included.

FastAPI's own document would promise a 422 that is never sent, and would miss bodies that routes read themselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from ...engine.checks import Schema
from .request_model import RequestModel

_REF = "#/components/schemas/{model}"
_NULLABLE_TEXT = {"type": ["string", "null"]}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string", "description": "The fault, and the way out."},
                "type": {"type": "string"},
                "param": _NULLABLE_TEXT | {"description": "The field at fault."},
                "code": _NULLABLE_TEXT,
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_RETRY_AFTER = {"headers": {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}}
_ERRORS: dict[int, Schema] = {
    400: {"description": "The request is not valid; `param` names the field."},
    401: {"description": "The server needs an API key, and the request has no valid one."},
    403: {"description": "The web page's origin, or the Host, is not allowed on a server without keys."},
    404: {"description": "The model does not exist, or the caller has no such result."},
    408: {"description": "The body did not arrive in time."},
    413: {"description": "The body is longer than --max-body-bytes, or there is no space for the file."},
    422: {"description": "The Idempotency-Key has been used before, with another body."},
    429: {"description": "The queue is full, or too many results are kept.", **_RETRY_AFTER},
    500: {"description": "The server has failed; its log has the details under `code`."},
    503: {"description": "The server is loading, draining or stalled, or it cancelled the request.", **_RETRY_AFTER},
}
# Statuses that a kind of route can answer with.
ALWAYS = (400, 500)
KEYED = (*ALWAYS, 401, 403)
LOOKUP = (*KEYED, 404, 503)
BODY = (*KEYED, 404, 408, 413, 503)
GENERATION = (*BODY, 429)
KEEPING = (*GENERATION, 422)
UPLOAD = (*KEYED, 408, 413, 503)


def parameter(name: str, description: str, *, place: str = "query", **schema: Any) -> Schema:
    """Describe a parameter. The default `schema` is a string."""
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": schema or {"type": "string"},
    }


IDEMPOTENCY_KEY = parameter(
    "Idempotency-Key",
    "1 to 255 visible characters. Repeating a request with its key returns the same job.",
    place="header",
    type="string",
    minLength=1,
    maxLength=255,
)


def events(description: str, example: str, *, has_json: bool = False) -> Schema:
    """Describe an answer that is a stream of events, or JSON on request."""
    content: Schema = {"text/event-stream": {"example": example}}  # a schema would describe one event
    return {"description": description, "content": content | ({"application/json": {}} if has_json else {})}


def operation(
    answers: Mapping[int, str | Schema],
    *,
    errors: Sequence[int] = KEYED,
    error_schema: Schema | None = None,
    body: type[RequestModel] | None = None,
    example: Mapping[str, Any] | None = None,
    parameters: Sequence[Schema] = (),
) -> dict[str, Any]:
    """Build the arguments of a route's decorator.

    `answers` are descriptions by status, the usual one first; `error_schema` replaces the common schema of errors.
    """
    responses = {str(code): {"description": what} if isinstance(what, str) else what for code, what in answers.items()}
    content = {"application/json": {"schema": error_schema or {"$ref": _REF.format(model="Error")}}}
    responses |= {str(status): _ERRORS[status] | {"content": content} for status in sorted(errors)}
    extra: dict[str, Any] = {"responses": responses}
    if body is not None:
        json_content = {"schema": {"$ref": _REF.format(model=body.__name__)}, "example": example}
        extra["requestBody"] = {"required": True, "content": {"application/json": json_content}}
    if parameters:
        extra["parameters"] = list(parameters)
    return {"status_code": next(iter(answers)), "openapi_extra": extra}


def upload(answers: Mapping[int, str | Schema], *, errors: Sequence[int]) -> dict[str, Any]:
    """Like `operation`, for a route that takes a file."""
    text = {"type": "string"}
    schema = {
        "type": "object",
        "properties": {
            "file": text | {"format": "binary", "description": "JSON objects, one per line."},
            "purpose": {"enum": ["batch"]},
            "expires_after[anchor]": {"enum": ["created_at"]},
            "expires_after[seconds]": {"type": ["string", "integer"], "description": "Seconds to keep the file."},
        },
        "required": ["file", "purpose"],
        "additionalProperties": False,
    }
    route = operation(answers, errors=errors)
    route["openapi_extra"]["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    return route


def openapi_of(app: FastAPI) -> Schema:
    """Return the document with the schemas of all bodies. It is built once, in 0.1 s."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(
            title=app.title,
            version=app.version,
            routes=app.routes,
            description="Every error has the form `Error`, whatever its status. Unknown fields are errors.",
        )
        refs = str(app.openapi_schema)
        used = [model for model in _models(RequestModel) if _REF.format(model=model.__name__) in refs]
        _, schemas = models_json_schema([(model, "validation") for model in used], ref_template=_REF)
        app.openapi_schema["components"] = {"schemas": {"Error": _ERROR, **schemas["$defs"]}}
    return app.openapi_schema


def _models(base: type[RequestModel]) -> Iterator[type[RequestModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)
