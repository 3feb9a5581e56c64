"""A server process: take the port, answer while the model loads, serve, drain on a signal, exit.

uvicorn would shut down at once on SIGTERM; here the engine is drained first, so the signals are ours.
"""

import asyncio
import contextlib
import dataclasses
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from ...engine.errors import ConfigError
from ..app import build_app
from ..http.errors import EngineDiedError
from ..http.h11_protocol import KEEP_ALIVE_S, MAX_HEAD_BYTES, Connection
from ..service import Service
from ..settings import Settings
from .banner import banner
from .file_limits import raise_file_limit, rate_limit_emfile_log
from .gc_policy import collect_when_idle

# After the drain only the last bytes are being written; a client that stalls longer is cut off.
LAST_BYTES_S = 5
PORTS_TRIED = 50


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises ConfigError if the port is taken or the model cannot be loaded, EngineDiedError if the engine died.
    """
    raise_file_limit()
    rate_limit_emfile_log()
    listener = listen(settings.host, settings.port)
    if not settings.api_key and not _is_loopback(settings.host):
        _warn_without_key(settings.host, listener.getsockname()[1])
    asyncio.run(_Process(settings, listener).run())


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ConfigError that names a free port if this one is taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server((str(address[0]), port), family=family, backlog=1024)
    except socket.gaierror as exc:
        raise ConfigError(f"--host {host}: no such address on this machine ({exc.strerror})") from exc
    except OSError as exc:
        free = _free_port(host, port)
        hint = f"; port {free} is free: --port {free}" if free else ""
        raise ConfigError(f"cannot listen on {host} port {port}: {exc.strerror}{hint}") from exc
    # asyncio sets this only on sockets that it made itself; without it a kept connection's answer, written in two
    # parts, waits for the client's delayed acknowledgement: 44 ms instead of 2.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers; `is_up` is set when it answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


def uvicorn_config(app: object) -> uvicorn.Config:
    """How uvicorn runs our app: HTTP/1.1 with bounded heads, no access log (paths hold result ids), no banner."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_BYTES_S,
    )


class _Process:
    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._stop = asyncio.Event()
        self._gc_task: asyncio.Task[None] | None = None  # referenced, or it would be collected itself
        app = build_app(dataclasses.replace(settings, port=listener.getsockname()[1]))  # the port may have been 0
        self._service: Service = app.state.service
        self._service.logs_load_failure = False
        self._server = _Server(uvicorn_config(app))

    async def run(self) -> None:
        """Until a signal has come and running requests have ended. Raises EngineDiedError."""
        port = self._listener.getsockname()[1]
        self._handle_signals(asyncio.get_running_loop())
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        try:
            await self._server.is_up.wait()
            assert self._service.loading is not None
            await self._service.loading
            engine = self._service.engine
            self._gc_task = asyncio.create_task(collect_when_idle(lambda: engine.num_unfinished))
            print(banner(self._settings, engine, port=port), flush=True)
            await self._wait_for_stop()
            await self._drain()
        finally:
            self._server.should_exit = True
            await serving

    async def _wait_for_stop(self) -> None:
        """Return at a signal. With a dead engine it could only refuse, so it exits and a supervisor can restart it."""
        dead = asyncio.create_task(self._service.engine.wait_dead())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([dead, stop], return_when=asyncio.FIRST_COMPLETED)
            if dead.done():
                raise EngineDiedError("the engine has died of the error in the log, so the server ends")
        finally:
            dead.cancel()
            stop.cancel()
            await asyncio.gather(dead, stop, return_exceptions=True)

    async def _drain(self) -> None:
        if num := self._service.engine.num_unfinished:
            text = f"finishing {num} requests, at most {self._settings.drain_timeout:g} s; a second signal ends at once"
            print(f"splitfuse: {text}", file=sys.stderr, flush=True)
        await self._service.drain()

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not loop.add_signal_handler: Windows has none.
            signal.signal(number, lambda number, _: loop.call_soon_threadsafe(self._on_signal, number))

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            _exit_now(128 + number)
        self._stop.set()
        if self._service.state == "loading":
            _exit_now(0)  # nothing to finish, and a thread that loads weights cannot be stopped


def _warn_without_key(host: str, port: int) -> None:
    print(
        f"splitfuse: warning: listening on {host} without an API key; all who reach port {port} can use the model: "
        "set SPLITFUSE_API_KEY",
        file=sys.stderr,
    )


def _exit_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _free_port(host: str, port: int) -> int | None:
    """The next port that can be listened on."""
    for candidate in range(port + 1, min(port + PORTS_TRIED, 65536)):
        with contextlib.suppress(OSError), socket.create_server((host, candidate)):
            return candidate
    return None


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
