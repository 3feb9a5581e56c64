"""Thread that runs an ASGI application behind a real uvicorn on a free port."""

import socket
import sys
import threading
import traceback
from typing import Self

import uvicorn
from starlette.types import ASGIApp


class ServerThread:
    """Server that runs inside `with`; `url` is its base URL."""

    def __init__(self, app: ASGIApp) -> None:
        # names the protocol: only then does asyncio turn off Nagle's algorithm, which costs 40 ms per answer
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = _Server(uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._server.is_up.wait(60)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.should_exit = True
        self._thread.join(60)  # 10 s were once not enough on a busy machine
        assert not self._thread.is_alive(), self._stack()

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "the server still runs:\n" + "".join(traceback.format_stack(frame))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()
