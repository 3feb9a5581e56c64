"""HttpServer: uvicorn with our connections, and without its signal handlers. Knows no engine."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette

from ..http.connection import KEEP_ALIVE_S, Connection

# After the drain only the last bytes are being written; a client that stalls longer is cut off.
LAST_BYTES_S = 5


class HttpServer(uvicorn.Server):
    """Server of an application. `is_up` is set once it answers."""

    def __init__(self, app: Starlette, **more: Any) -> None:
        super().__init__(uvicorn_config(app, **more))
        self.app, self.is_up = app, asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self.is_up.set()


def uvicorn_config(app: Starlette, **more: Any) -> uvicorn.Config:
    """Configure uvicorn: HTTP/1.1 with bounded heads, no access log (paths hold result ids), no banner."""
    return uvicorn.Config(
        app,
        http=functools.partial(Connection, limit=app.state.connections),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_BYTES_S,
        **more,
    )
