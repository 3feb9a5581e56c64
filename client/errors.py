"""Errors of a call to the server: one tree, with the server's own messages.

APIError                     any refusal by the server, or an answer that makes no sense
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

from .. import SplitfuseError


class APIError(SplitfuseError):
    """Error with the server's envelope; `status` is None if it did not come as an HTTP answer."""

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
    """Error in the request; `param` names the field."""


class AuthenticationError(APIError):
    """Error of an API key that is missing or wrong."""


class NotFoundError(APIError):
    """Error of a result that is unknown, expired or another user's, or of an unknown model."""


class QueueFullError(APIError):
    """Error of a full queue; retry after `retry_after` seconds."""


class ServerError(APIError):
    """Error of a server that failed, is loading, or is shutting down."""


class APIConnectionError(APIError):
    """Error of a call that got no answer."""


class APITimeoutError(APIConnectionError):
    """Error of a call whose `timeout` is over."""


class ServerStartError(APIConnectionError):
    """Error of a server process that ended, or was not ready in time."""


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
    """Return the error class of an HTTP status."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 400 <= status < 500:
        return BadRequestError
    return ServerError if status >= 500 else APIError


def from_envelope(envelope: object, *, status: int | None = None, retry_after: float | None = None) -> APIError:
    """Return the error that an envelope's inner object (message, type, param, code) states.

    Without an HTTP `status` (an error in a stream or a result) `type` decides the class.
    """
    detail: Mapping[str, Any] = envelope if isinstance(envelope, Mapping) else {}
    kind = class_for(status if status is not None else _STATUS_OF_TYPE.get(str(detail.get("type")), 500))
    message = detail.get("message") or f"the server answered {status or 'with an error'} and gave no reason"
    return kind(
        str(message), status=status, param=detail.get("param"), code=detail.get("code"), retry_after=retry_after
    )


def not_reachable(base_url: str, cause: str) -> APIConnectionError:
    """Return the error for a server that does not answer."""
    return APIConnectionError(f"no answer from {base_url} ({cause}); is the server running? splitfuse serve")
