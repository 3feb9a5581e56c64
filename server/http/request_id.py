"""X-Request-Id: a label that the client may choose and always gets back. Never a key to anything."""

import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_CHARS = 128


class EchoRequestId:
    """ASGI middleware: puts X-Request-Id on every answer, the client's if it is printable ASCII, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = HTTPConnection(scope).headers.get("x-request-id", "")
        request_id = given if _is_label(given) else secrets.token_hex(16)

        async def labelled_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, labelled_send)


def _is_label(text: str) -> bool:
    return 0 < len(text) <= MAX_CHARS and text.isascii() and text.isprintable()
