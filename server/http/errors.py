"""Errors as HTTP users see them: one envelope, a closed set of types, nothing internal.

`describe` turns any exception into a Problem; a bug becomes a 500 that carries only an id, which is in the log.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from ...engine.errors import (
    ConstraintError,
    GoalUnreachableError,
    InvalidRequestError,
    ModelNotFoundError,
    QueueFullError,
    RequestFailedError,
    SplitfuseError,
    UnavailableError,
)
from .json_response import JsonResponse

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 2
# Keys in a request's scope: its id, and the form of its API's errors if that is not the common envelope.
REQUEST_ID = "splitfuse.request_id"
ERROR_FORM = "splitfuse.error_form"
IsHeld = Callable[[], Coroutine[Any, Any, bool]]


class NotReadyError(UnavailableError):
    """No new work can start now. `code` gives the reason: loading, draining, failed, stalled, failing or cancelled."""

    retry_after_s = RETRY_AFTER_S

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class AuthenticationError(SplitfuseError):
    """The request has no key or a wrong one."""


class PermissionDeniedError(SplitfuseError):
    """The request's key may not do this."""

    def __init__(self) -> None:
        super().__init__("this needs an admin key of the server (--admin-key)")


class ResultNotFoundError(SplitfuseError):
    """No such result (or file, or batch) for this caller.

    Unknown, expired and foreign ids get the same text, because callers must not be able to tell them apart.
    """

    def __init__(self, kind: str = "result") -> None:
        super().__init__(f"no such {kind}: unknown, expired, or not yours")
        self.code = f"{kind}_not_found"


class NotThinkingError(SplitfuseError):
    """The answer's reasoning is over, or its model has none."""

    def __init__(self) -> None:
        super().__init__("this answer does not think: its reasoning is over, or none is known of the model")


class IdempotencyKeyReusedError(SplitfuseError):
    """The key has been used before, with another body."""

    def __init__(self) -> None:
        super().__init__("this Idempotency-Key came before with another request; give each request a key of its own")


class QuotaExceededError(QueueFullError):
    """The caller's own share is used up; other callers are served."""


class BodyTooLargeError(SplitfuseError):
    """The body is longer than max_body_bytes."""


class UnreadEncodingError(SplitfuseError):
    """The body is compressed in a way that is not read."""

    def __init__(self, encoding: str) -> None:
        super().__init__(f"a body with Content-Encoding: {encoding[:40]} is not read; send it without")


class FileTooLargeError(SplitfuseError):
    """There is not enough space for the file."""


class BodyTooSlowError(SplitfuseError):
    """The body did not arrive in time."""


class StoreUnavailableError(NotReadyError):
    """Results cannot be written or read now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="store_unavailable")


class HeldElsewhereError(SplitfuseError):
    """Another server runs this job. `is_held` tells if it still does."""

    def __init__(self, url: str, *, is_held: IsHeld) -> None:
        super().__init__("another server runs this job")
        self.url = url
        self.is_held = is_held


class MovedError(NotReadyError):
    """The job's server has ended or is ending; another server will continue the job."""

    retry_after_s = 4  # the clients' five retries then last longer than a lease

    def __init__(self) -> None:
        super().__init__("the server that ran this has ended; another one goes on with it soon", code="resuming")


class EngineDiedError(SplitfuseError):
    """The engine's loop has ended with an error of its own, so this process cannot serve any more."""


@dataclass(frozen=True)
class Problem:
    """Failure as HTTP users see it."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def error(self) -> dict[str, Any]:
        """Return the object under "error"."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def envelope(self) -> dict[str, Any]:
        """Build the body of an error answer, which is also the data of an error event."""
        return {"error": self.error()}

    def response(self) -> "ErrorResponse":
        """Build the error answer."""
        return ErrorResponse(self)


# Builds the answer to a request with this id.
ErrorForm = Callable[[Problem, str], JsonResponse]


class ErrorResponse(JsonResponse):
    """An error in the form of the request's API."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.envelope(), status_code=problem.status, headers=dict(problem.headers))
        self._problem = problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the error."""
        form: ErrorForm | None = scope.get(ERROR_FORM)
        if form is None:
            await super().__call__(scope, receive, send)
        else:
            await form(self._problem, scope[REQUEST_ID])(scope, receive, send)


def describe(exc: BaseException) -> Problem:
    """Convert an exception to a Problem, and log what the user must not see."""
    if isinstance(exc, asyncio.CancelledError):  # the server ends sooner than the request
        exc = NotReadyError("the request was cancelled before its answer was complete", code="cancelled")
    if isinstance(exc, SplitfuseError):
        return _describe_own(exc)
    if isinstance(exc, HTTPException):
        return _describe_http(exc)
    return _logged(exc)


def _describe_own(exc: SplitfuseError) -> Problem:
    text = str(exc)
    match exc:
        case InvalidRequestError():
            return Problem(400, text, param=exc.param, code=exc.code)
        case AuthenticationError():
            headers = {"WWW-Authenticate": "Bearer"}
            return Problem(401, text, "authentication_error", code="invalid_api_key", headers=headers)
        case PermissionDeniedError():
            return Problem(403, text, "permission_error", code="admin_key_needed")
        case ModelNotFoundError():
            return Problem(404, text, "not_found_error", param="model", code="model_not_found")
        case ResultNotFoundError():
            return Problem(404, text, "not_found_error", code=exc.code)
        case BodyTooSlowError():
            return Problem(408, text, code="body_too_slow", headers={"Connection": "close"})
        case BodyTooLargeError():
            return Problem(413, text, code="body_too_large", headers={"Connection": "close"})
        case UnreadEncodingError():
            return Problem(415, text, param="Content-Encoding", code="unread_encoding", headers={"Connection": "close"})
        case FileTooLargeError():
            return Problem(413, text, param="file", code="file_too_large")
        case NotThinkingError():
            return Problem(409, text, code="not_thinking")
        case IdempotencyKeyReusedError():
            return Problem(422, text, param="Idempotency-Key", code="idempotency_key_reused")
        case QueueFullError():
            codes = {QuotaExceededError: "quota_exceeded", GoalUnreachableError: "goal_unreachable"}
            which = codes.get(type(exc), "queue_full")
            headers = {"Retry-After": str(max(1, math.ceil(exc.retry_after_s)))}
            return Problem(429, text, "rate_limit_error", code=which, headers=headers)
        case UnavailableError():
            code, retry_after = getattr(exc, "code", None), getattr(exc, "retry_after_s", RETRY_AFTER_S)
            return Problem(503, text, "service_unavailable", code=code, headers={"Retry-After": str(retry_after)})
        case ConstraintError():
            return Problem(400, text, param=exc.param, code="constraint_not_met")
        case RequestFailedError():
            return _internal(exc.error_id) if exc.code is None else Problem(500, text, "server_error", code=exc.code)
        case _:
            return _logged(exc)  # such as a ConfigError: the model folder turned out broken only now


def _describe_http(exc: HTTPException) -> Problem:
    headers = exc.headers or {}
    if exc.status_code == 404:
        return Problem(404, exc.detail, "not_found_error", headers=headers)
    if exc.status_code == 405:
        return Problem(405, exc.detail, code="method_not_allowed", headers=headers)
    kind = "server_error" if exc.status_code >= 500 else "invalid_request_error"
    return Problem(exc.status_code, str(exc.detail), kind, headers=headers)


def _logged(exc: BaseException) -> Problem:
    error_id = secrets.token_hex(8)
    logger.error("error %s", error_id, exc_info=exc)
    return _internal(error_id)


def _internal(error_id: str) -> Problem:
    return Problem(500, f"internal error; the server's log has it under {error_id}", "server_error", code=error_id)
