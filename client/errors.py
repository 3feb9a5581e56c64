"""What can go wrong between a caller and a server: one tree, each error with the server's own message.

APIError                     anything the server refused, or an answer that makes no sense
├── BadRequestError          400 and the other 4xx: the request is at fault
├── AuthenticationError      401, 403
├── NotFoundError            404: no such result, no such model
├── QueueFullError           429: try again after `retry_after` seconds
├── ServerError              5xx, or a request that failed in the engine
└── APIConnectionError       no answer at all
    ├── APITimeoutError      the call's time is over
    └── ServerStartError     serve() found the process gone before it was ready
"""

from collections.abc import Mapping
from typing import Any


class APIError(Exception):
    """An error with the server's envelope: `status` is None where no HTTP answer carried it."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after


class BadRequestError(APIError):
    """The request is at fault; `param` names the field."""


class AuthenticationError(APIError):
    """The API key is missing or wrong."""


class NotFoundError(APIError):
    """No such result (unknown, expired or another user's) or no such model."""


class QueueFullError(APIError):
    """The server's queue is full; try again after `retry_after` seconds."""


class ServerError(APIError):
    """The server failed, is loading, or is shutting down."""


class APIConnectionError(APIError):
    """There was no answer."""


class APITimeoutError(APIConnectionError):
    """The call's `timeout` is over."""


class ServerStartError(APIConnectionError):
    """The server process ended, or was not ready in time."""


_BY_STATUS: dict[int, type[APIError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    429: QueueFullError,
}

_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "service_unavailable": 503,
}


def class_for(status: int) -> type[APIError]:
    """The error class of an HTTP status."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 400 <= status < 500:
        return BadRequestError
    return ServerError if status >= 500 else APIError


def from_envelope(envelope: object, *, status: int | None = None, retry_after: float | None = None) -> APIError:
    """The error that an envelope's inner object (message, type, param, code) states.

    Without an HTTP `status` (an error inside a stream or a result) the `type` decides the class.
    """
    detail: Mapping[str, Any] = envelope if isinstance(envelope, Mapping) else {}
    kind = class_for(status if status is not None else _STATUS_OF_TYPE.get(str(detail.get("type")), 500))
    message = detail.get("message") or f"the server answered {status or 'with an error'} and gave no reason"
    return kind(
        str(message), status=status, param=detail.get("param"), code=detail.get("code"), retry_after=retry_after
    )


def not_reachable(base_url: str, cause: str) -> APIConnectionError:
    """The error for a server that does not answer."""
    return APIConnectionError(f"no answer from {base_url} ({cause}); is the server running? splitfuse serve")
