"""Server process: answer while the model loads, serve, drain on a signal, exit.

uvicorn would shut down at once on SIGTERM. The engine must be drained first, so this process handles the signals
itself.
"""

import asyncio
import contextlib
import dataclasses
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from ..app import build_app
from ..http.errors import EngineDiedError
from ..server_settings import ServerSettings
from ..service import Service
from .banner import banner, facts, reachable
from .exit import END_S, HUNG_EXIT, end_hung
from .gc_policy import collect_when_idle
from .http_server import LAST_BYTES_S, HttpServer
from .log_format import as_line
from .queued_output import num_dropped_lines
from .runtime_file import announced
from .stop_signals import KILL_S, StopSignals
from .watchdog import Watchdog

if TYPE_CHECKING:
    from ...engine.serving.async_engine import AsyncEngine

_EXIT_S = 1  # reserve for Python's own exit, which takes 0.3 s


def run(settings: ServerSettings, signals: StopSignals, listener: socket.socket, *, replica: str | None = None) -> None:
    """Like start.serve, on a port that is open."""
    host, port = reachable(settings.host), _port(listener)
    scheme = "http" if settings.ssl_certfile is None else "https"
    with announced(host=host, port=port, model=settings.model_name, scheme=scheme, uds=settings.uds):
        asyncio.run(_Process(settings, listener, signals, replica).run())


def _port(listener: socket.socket) -> int:
    """Return the port; 0 of a Unix socket."""
    return 0 if listener.family == socket.AF_UNIX else int(listener.getsockname()[1])


def notify(state: str) -> None:
    """Send systemd a state such as READY=1 of a unit of Type=notify, to the socket that NOTIFY_SOCKET names, if any."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):
        return
    address = f"\0{name[1:]}" if name.startswith("@") else name  # @: a name that is no file
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), address)


def server_of(settings: ServerSettings, engine: "AsyncEngine | None" = None, **more: Any) -> HttpServer:
    """Make the server of an application with these settings, like `build_app`."""
    certificate = {"ssl_certfile": settings.ssl_certfile, "ssl_keyfile": settings.ssl_keyfile}
    return HttpServer(build_app(settings, engine, **more), **certificate)


class _Process:
    def __init__(
        self, settings: ServerSettings, listener: socket.socket, signals: StopSignals, replica: str | None
    ) -> None:
        self._replica = replica
        self._settings = settings
        self._listener = listener
        self._signals = signals
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []  # referenced, or they would be collected
        own_settings = dataclasses.replace(settings, port=_port(listener))  # the port may have been 0
        self._server = server_of(own_settings, stats=lambda: {"log_lines_dropped": num_dropped_lines()})
        self._service: Service = self._server.app.state.service
        self._service.lifecycle.logs_load_failure = False

    async def run(self) -> None:
        """Run until a signal has come and running requests have ended. Raises EngineDiedError."""
        port = _port(self._listener)
        loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        try:
            await self._server.is_up.wait()
            assert self._service.lifecycle.loading is not None
            await self._service.lifecycle.loading
            engine = self._service.engine
            limit_s = self._settings.drain_timeout + END_S - KILL_S
            self._signals.on_stop(lambda: loop.call_soon_threadsafe(self._stop.set), limit_s=limit_s)
            self._tasks = [
                asyncio.create_task(collect_when_idle(lambda: engine.num_unfinished, engine.prepare)),
                asyncio.create_task(self._watch()),
            ]
            fields = facts(self._settings, engine, port=port) if self._replica is None else None
            text = banner(self._settings, engine, port=port, replica=self._replica)
            print(as_line(text, fields=fields), flush=True)
            notify("READY=1")
            await self._wait_for_stop()
            notify("STOPPING=1")
            await self._drain()
        finally:
            self._server.should_exit = True
            await serving

    async def _wait_for_stop(self) -> None:
        """Return at a signal.

        With a dead engine every request would be refused, so exit and let a supervisor restart.
        """
        dead = asyncio.create_task(self._service.engine.wait_dead())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([dead, stop], return_when=asyncio.FIRST_COMPLETED)
            if dead.done():
                self._signals.hold_to_limit()
                raise self._service.engine.lost or EngineDiedError(
                    "the engine has died of the error in the log, so the server ends"
                )
        finally:
            dead.cancel()
            stop.cancel()
            await asyncio.gather(dead, stop, return_exceptions=True)

    async def _drain(self) -> None:
        if num := self._service.engine.num_unfinished:
            text = f"finishing {num} requests, at most {self._settings.drain_timeout:g} s; a second signal ends at once"
            print(as_line(f"splitfuse: {text}"), file=sys.stderr, flush=True)
        end = time.monotonic() + self._settings.drain_timeout + END_S - _EXIT_S
        await self._service.lifecycle.drain()
        self._server.config.timeout_graceful_shutdown = max(1, min(LAST_BYTES_S, int(end - time.monotonic())))

    async def _watch(self) -> None:
        """End the process if the engine or this event loop makes no progress. Runs until cancelled."""
        settings, engine = self._settings, self._service.engine
        if settings.step_timeout == 0:
            return
        watchdog = Watchdog(
            lambda: engine.has_work,
            timeout=settings.step_timeout,
            max_num_batched_tokens=lambda: engine.config.max_num_batched_tokens,
        )
        engine.observe(watchdog)
        await watchdog.watch(lambda why: end_hung(HUNG_EXIT, why))
