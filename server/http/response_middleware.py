"""Common parts of all answers: an X-Request-Id, nosniff, the headers that a request added, errors in the API's form.

An unexpected exception becomes a 500. The id is a label that the client may choose and always gets back, and never a
key to anything.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .arrival import note_arrival
from .errors import ERROR_FORM, REQUEST_ID, ErrorForm, describe

LEFT_STATUS = 499  # the client disconnected before there was an answer, like in nginx's log
MAX_CHARS = 128
_MAX_LIST_CHARS = 1024
_HEADERS = "splitfuse.headers"  # key in an ASGI scope


def answer_headers(connection: HTTPConnection) -> dict[str, str]:
    """Return the headers that the answer to this request will have, whichever it is, for callers to add to."""
    headers: dict[str, str] = connection.scope.setdefault(_HEADERS, {})
    return headers


def listed(paths: Iterable[str]) -> str:
    """Return paths as a header's value: quoted, between commas, cut at 1,024 characters."""
    text = ",".join(quote(path, safe="/~!$&'()*+:;=@[]") for path in paths)
    return text if len(text) <= _MAX_LIST_CHARS else "".join(text[:_MAX_LIST_CHARS].rpartition(",")[:2]) + "..."


class ResponseMiddleware:
    """ASGI middleware that labels answers, and answers with an error if the app fails; the log gets the traceback.

    `error_form_of`: the form of errors below a path; None for the common one. `on_answer`: hears of each answer's
    declared path (an actual path may hold a result's id), method and status.
    """

    def __init__(
        self,
        app: ASGIApp,
        error_form_of: Callable[[str], ErrorForm | None],
        on_answer: Callable[[str, str, int], None] = lambda *_: None,
    ) -> None:
        self._app = app
        self._error_form_of = error_form_of
        self._on_answer = on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client_id = HTTPConnection(scope).headers.get("x-request-id", "")
        request_id = client_id if is_label(client_id) else secrets.token_hex(16)
        scope[REQUEST_ID] = request_id
        if (form := self._error_form_of(scope["path"])) is not None:
            scope[ERROR_FORM] = form
        arrival, status = note_arrival(), LEFT_STATUS
        extra_headers: dict[str, str] = {}
        scope[_HEADERS] = extra_headers

        async def labelled_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
                headers.update(extra_headers)
                arrival.is_answered, status = True, message["status"]
            await send(message)

        try:
            await self._app(scope, receive, labelled_send)
        except ClientDisconnect:
            pass  # there is no client left to answer
        except (Exception, asyncio.CancelledError) as exc:
            if arrival.is_answered:
                raise
            await describe(exc).response()(scope, receive, labelled_send)
        finally:
            self._on_answer(getattr(scope.get("route"), "path", "-"), scope.get("method", ""), status)


def is_label(text: str) -> bool:
    """True if the text can be an X-Request-Id."""
    return 0 < len(text) <= MAX_CHARS and text.isascii() and text.isprintable()
