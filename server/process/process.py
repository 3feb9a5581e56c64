"""Server process: take the port, answer while the model loads, serve, drain on a signal, exit.

uvicorn would shut down at once on SIGTERM. The engine must be drained first, so this process handles the signals
itself.
"""

import asyncio
import contextlib
import dataclasses
import faulthandler
import functools
import ipaddress
import logging
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from ...engine.errors import ConfigError
from ..app import build_app
from ..http.errors import EngineDiedError
from ..http.h11_protocol import KEEP_ALIVE_S, Connection
from ..server_settings import ServerSettings
from ..service import Service
from .banner import banner, reachable
from .exit import HUNG_EXIT, end_hung
from .file_limits import raise_file_limit, rate_limit_emfile_log
from .gc_policy import collect_when_idle
from .log_format import as_line, set_up_logging
from .log_limit import limit_request_log
from .queued_output import num_dropped_lines
from .runtime_file import announced
from .stop_signals import StopSignals
from .watchdog import Watchdog

# Limit from the end of the drain timeout to the end of the process, whatever hangs.
END_S = 5
_EXIT_S = 1  # reserve for Python's own exit, which takes 0.3 s
# After the drain only the last bytes are being written; a client that stalls longer is cut off.
LAST_BYTES_S = 5
PORTS_TRIED = 50
MIN_KEY_CHARS = 16  # 96 bits in base64


def serve(settings: ServerSettings, signals: StopSignals, *, replica: str | None = None) -> None:
    """Serve until one of the signals. `replica` is the name of a server that is one of several behind one port.

    Raises ConfigError if the port is taken or the model cannot be loaded, EngineDiedError or RankLostError if the
    engine died.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(file=sys.stderr.fileno())  # a crash in native code leaves its stacks
    raise_file_limit()
    rate_limit_emfile_log()
    limit_request_log()
    set_up_logging(settings.log_format)
    listener = listen(settings.host, settings.port)
    if not settings.keys and not _is_loopback(settings.host):
        _warn(
            f"listening on {settings.host} without an API key; all who reach port {listener.getsockname()[1]} can use "
            "the model: set SPLITFUSE_API_KEY"
        )
    _warn_of_keys(settings)
    port = listener.getsockname()[1]
    with announced(host=reachable(settings.host), port=port, model=settings.model_name):
        asyncio.run(_Process(settings, listener, signals, replica).run())


def _warn_of_keys(settings: ServerSettings) -> None:
    """Warn of keys that others can read, or guess: wrong keys are refused without a limit or a delay."""
    for path in filter(None, (settings.api_key_file, settings.admin_key_file)):
        from ...engine.private_file import others_with_access

        if others := others_with_access(Path(path)):
            _warn(f"{others} can read the keys in {path}: chmod 600 {path}")
    if any(len(key) < MIN_KEY_CHARS for key in (*settings.keys, *settings.admin_keys)):
        text = "an API key or admin key is shorter than"
        _warn(f"{text} {MIN_KEY_CHARS} characters, and so can be guessed: openssl rand -base64 24 makes a good one")


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. If the port is taken, raise ConfigError with a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server((str(address[0]), port), family=family, backlog=1024)
    except socket.gaierror as exc:
        raise ConfigError(f"--host {host}: no such address on this machine ({exc.strerror})") from exc
    except OSError as exc:
        free = _free_port(host, port)
        hint = f"; port {free} is free: --port {free}" if free else ""
        raise ConfigError(f"cannot listen on {host} port {port}: {exc.strerror}{hint}") from exc
    # asyncio sets this only on sockets that it creates. Without it, a kept connection's answer, written in two parts,
    # waits for the client's delayed acknowledgement: 44 ms instead of 2.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers. `is_up` is set once it answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


def uvicorn_config(app: FastAPI) -> uvicorn.Config:
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
    )


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
        app = build_app(
            dataclasses.replace(settings, port=listener.getsockname()[1]),  # the port may have been 0
            stats=lambda: {"log_lines_dropped": num_dropped_lines()},
        )
        self._service: Service = app.state.service
        self._service.lifecycle.logs_load_failure = False
        self._server = _Server(uvicorn_config(app))

    async def run(self) -> None:
        """Run until a signal has come and running requests have ended. Raises EngineDiedError."""
        port = self._listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        try:
            await self._server.is_up.wait()
            assert self._service.lifecycle.loading is not None
            await self._service.lifecycle.loading
            engine = self._service.engine
            limit_s = self._settings.drain_timeout + END_S
            self._signals.on_stop(lambda: loop.call_soon_threadsafe(self._stop.set), limit_s=limit_s)
            self._tasks = [
                asyncio.create_task(collect_when_idle(lambda: engine.num_unfinished, engine.prepare)),
                asyncio.create_task(self._watch()),
            ]
            print(as_line(banner(self._settings, engine, port=port, replica=self._replica)), flush=True)
            await self._wait_for_stop()
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
            max_num_batched_tokens=settings.limits_on(settings.device).num_batched_tokens,
        )
        engine.observers.append(watchdog)
        await watchdog.watch(lambda why: end_hung(HUNG_EXIT, why))


def _warn(text: str) -> None:
    print(as_line(f"splitfuse: warning: {text}", level=logging.WARNING), file=sys.stderr)


def _free_port(host: str, port: int) -> int | None:
    """Find the next free port."""
    for candidate in range(port + 1, min(port + PORTS_TRIED, 65536)):
        with contextlib.suppress(OSError), socket.create_server((host, candidate)):
            return candidate
    return None


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
