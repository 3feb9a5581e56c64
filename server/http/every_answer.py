"""What holds for every answer: it has an X-Request-Id, and an unexpected exception becomes a 500 in the envelope.

The id is a label that the client may choose and always gets back. Never a key to anything.
"""

import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import describe

MAX_CHARS = 128
_REQUEST_ID = "splitfuse.request_id"  # of a scope


def request_id_of(scope: Scope) -> str:
    """The X-Request-Id of this request's answer."""
    return str(scope[_REQUEST_ID])


class EveryAnswer:
    """ASGI middleware: labels answers, and answers where the app fails; the log gets the traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = HTTPConnection(scope).headers.get("x-request-id", "")
        request_id = given if _is_label(given) else secrets.token_hex(16)
        scope[_REQUEST_ID] = request_id
        started = False

        async def labelled_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
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


def _is_label(text: str) -> bool:
    return 0 < len(text) <= MAX_CHARS and text.isascii() and text.isprintable()
