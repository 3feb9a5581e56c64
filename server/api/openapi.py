"""Answers of routes that FastAPI cannot know: errors by status, and streams of events."""

from typing import Any

from ...engine.checks import Schema

Answers = dict[int | str, dict[str, Any]]
_ERROR = {"$ref": "#/components/schemas/Error"}
_RETRY_AFTER = {"headers": {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}}
_ERRORS: dict[int, Schema] = {
    400: {"description": "The request is not valid; `param` names the field."},
    401: {"description": "The server needs an API key, and the request has no valid one."},
    403: {
        "description": "The web page's origin, or the Host, is not allowed without keys; or this is the admin key's."
    },
    404: {"description": "The model does not exist, or the caller has no such result."},
    408: {"description": "The body did not arrive in time."},
    409: {"description": "The answer does not think, or not any more."},
    413: {"description": "The body is longer than --max-body-bytes, or the answer or file would be too large."},
    415: {"description": "The body has a Content-Encoding, which none may have."},
    422: {"description": "The Idempotency-Key has been used before, with another body."},
    429: {"description": "The queue is full, or too many results are kept.", **_RETRY_AFTER},
    500: {"description": "The server has failed; its log has the details under `code`."},
    503: {"description": "The server is loading, draining or stalled, or it cancelled the request.", **_RETRY_AFTER},
}
ALWAYS = (400, 500)
KEYED = (*ALWAYS, 401, 403)
LOOKUP = (*KEYED, 404, 503)
BODY = (*LOOKUP, 408, 413, 415)
GENERATION = (*BODY, 429)
KEEPING = (*GENERATION, 422)


def errors(*statuses: int, schema: Schema = _ERROR) -> Answers:
    """Describe the errors of a route, as FastAPI's `responses`. `schema` replaces the common form of errors."""
    return {status: _ERRORS[status] | {"content": {"application/json": {"schema": schema}}} for status in statuses}


def events(description: str, example: str, *, has_json: bool = False) -> Answers:
    """Describe the answer 200 that is a stream of events, or JSON on request."""
    content: Schema = {"text/event-stream": {"example": example}}  # a schema would describe one event
    return {200: {"description": description, "content": content | ({"application/json": {}} if has_json else {})}}
