"""What holds for every answer: it has an X-Request-Id and the headers that its request brought about, an unexpected
exception becomes a 500, and errors have one form.

The id is a label that the client may choose and always gets back. Never a key to anything.
"""

import secrets
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ERROR_FORM, REQUEST_ID, ErrorForm, describe

MAX_CHARS = 128
_HEADERS = "splitfuse.headers"  # the key in an ASGI scope


def answer_headers(connection: HTTPConnection) -> dict[str, str]:
    """Headers that the answer to this request will have, whichever answer that is; to be added to."""
    headers: dict[str, str] = connection.scope.setdefault(_HEADERS, {})
    return headers


class EveryAnswer:
    """ASGI middleware: labels answers, and answers where the app fails; the log gets the traceback.

    `error_form_of`: the form of errors below a path; None for the common one.
    """

    def __init__(self, app: ASGIApp, error_form_of: Callable[[str], ErrorForm | None]) -> None:
        self._app = app
        self._error_form_of = error_form_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = HTTPConnection(scope).headers.get("x-request-id", "")
        request_id = given if is_label(given) else secrets.token_hex(16)
        scope[REQUEST_ID] = request_id
        if (form := self._error_form_of(scope["path"])) is not None:
            scope[ERROR_FORM] = form
        started = False
        more: dict[str, str] = {}
        scope[_HEADERS] = more

        async def labelled_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                headers.update(more)
                started = True
            await send(message)

        try:
            await self._app(scope, receive, labelled_send)
        except ClientDisconnect:
            pass  # there is no client left to answer
        except Exception as exc:
            if started:
                raise
            await describe(exc).response()(scope, receive, labelled_send)


def is_label(text: str) -> bool:
    """Whether it can be an X-Request-Id."""
    return 0 < len(text) <= MAX_CHARS and text.isascii() and text.isprintable()
