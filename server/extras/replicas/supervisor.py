"""Supervisor of `serve --replicas N`: starts HAProxy and the replicas behind it, and drains them on a signal."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette

from ... import package_version
from ...process.banner import curl, reachable
from ...process.file_limits import raise_file_limit
from ...process.log_format import as_line, set_up_logging
from ...process.process import END_S
from ...process.start import listen
from ...process.stop_signals import StopSignals
from . import ReplicaSettings
from .haproxy import Haproxy
from .haproxy_config import HaproxyConfig
from .local_placement import LocalPlacement
from .operations import Operations
from .placement import Placement
from .ray_placement import RayPlacement
from .replica import Replica
from .replica_client import ReplicaClient
from .replica_set import ReplicaSet
from .replica_settings import check_replicas, config_of, tags_of

_ASK_S = 0.5
_OWN_END_S = 5.0  # after the last replica, for HAProxy and Ray
# One replica more or less, like in other process managers.
_SCALING = {"SIGTTIN": 1, "SIGTTOU": -1}


def serve_replicas(settings: ReplicaSettings, signals: StopSignals) -> None:
    """Serve until one of the signals. Raises ConfigError."""
    check_replicas(settings)
    raise_file_limit()
    set_up_logging(settings.log_format)
    listener = listen(settings.host, settings.port)
    placement = _placement(settings)
    try:
        with tempfile.TemporaryDirectory(prefix="splitfuse-") as folder, listener:
            asyncio.run(Supervisor(settings, listener, signals, placement, folder).run())
    finally:
        placement.close()


def _placement(settings: ReplicaSettings) -> Placement:
    assert settings.replicas is not None
    if settings.ray_address is None:
        return LocalPlacement.of_machine(
            settings.replicas, device=settings.device, num_gpus_each=settings.tensor_parallel_size
        )
    return RayPlacement(
        settings.ray_address,
        device=settings.device,
        num_gpus_each=settings.tensor_parallel_size,
        num_cpus_each=settings.num_threads,
    )


class Supervisor:
    """One run of the supervisor. `folder` holds sockets and files, and is deleted at the end."""

    def __init__(
        self,
        settings: ReplicaSettings,
        listener: socket.socket,
        signals: StopSignals,
        placement: Placement,
        folder: str,
    ) -> None:
        assert settings.replicas is not None
        self._count = settings.replicas
        self._settings = settings
        self._listener = listener
        self._signals = signals
        self._placement = placement
        self._config = HaproxyConfig(
            tags=tags_of(settings, self._count),
            folder=folder,
            listener_fd=listener.fileno(),
            max_connections=settings.max_connections,
            has_shared_results=settings.has_shared_results,
        )
        self._haproxy = Haproxy(self._config)
        self._client = ReplicaClient(settings.admin_keys[:1] or settings.keys)

    async def run(self) -> None:
        """Run until a signal has come and all replicas have drained. Raises ConfigError."""
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        replicas = ReplicaSet(self._replica, most=self._count)
        operations = Operations(replicas.addresses, self._client, metrics_prefix=self._settings.metrics_prefix)
        async with contextlib.AsyncExitStack() as stack:  # exits in reverse order
            stack.push_async_callback(self._client.close)
            await stack.enter_async_context(_serving(operations.app(), self._config.operations_socket))
            stack.push_async_callback(self._haproxy.stop)
            await self._haproxy.start()
            stack.push_async_callback(replicas.drain)
            limit_s = self._settings.drain_timeout + END_S + _OWN_END_S
            self._signals.on_stop(lambda: loop.call_soon_threadsafe(stop.set), limit_s=limit_s)
            stack.enter_context(_scaling(lambda change: replicas.scale(replicas.count + change)))
            replicas.scale(self._count)
            await self._until_stopped(stop, replicas)

    def _replica(self, number: int) -> Replica:
        tags = list(self._config.tags.values())
        threads = None if self._placement.has_gpus else max(1, self._placement.num_cpus // self._count)
        config = config_of(self._settings, tag=tags[number], num_threads=threads)
        return Replica(
            number,
            config,
            placement=self._placement,
            haproxy=self._haproxy,
            client=self._client,
            keeps_results=not self._settings.has_shared_results,
        )

    async def _until_stopped(self, stop: asyncio.Event, replicas: ReplicaSet) -> None:
        """Wait for a stop signal. Raises ConfigError if a replica or HAProxy cannot start."""
        ends: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(stop.wait()),
            asyncio.ensure_future(self._haproxy.run()),
        ]
        announcing = asyncio.create_task(self._announce(replicas))
        try:
            done, _ = await asyncio.wait([*ends, replicas.failure], return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()
            text = f"replicas finish their requests, at most {self._settings.drain_timeout:g} s"
            print(as_line(f"splitfuse: {text}; a second signal ends at once"), file=sys.stderr, flush=True)
        finally:
            for task in (announcing, *ends):
                task.cancel()

    async def _announce(self, replicas: ReplicaSet) -> None:
        """Print the banner when the first replica is ready."""
        while True:
            for address in replicas.addresses().values():
                if address is not None and await self._client.is_ready(address):
                    url = f"http://{reachable(self._settings.host)}:{self._listener.getsockname()[1]}"
                    print(as_line(_banner(self._settings, url)), flush=True)
                    return
            await asyncio.sleep(_ASK_S)


def _banner(settings: ReplicaSettings, url: str) -> str:
    warning = "a replica that is killed takes its 202s with it; --results postgresql://… keeps them"
    rows = {
        "replicas": f"{settings.replicas}, the first is ready; kill -TTOU or -TTIN {os.getpid()}: one less or more",
        "results": "in PostgreSQL" if settings.has_shared_results else warning,
        "API": f"{url}/generate  {url}/v1",
        "try": curl(settings, url),
    }
    lines = [f"splitfuse {package_version()} answers; Ctrl-C stops it"]
    return "\n".join(lines + [f"  {name:<9} {text}" for name, text in rows.items()])


@contextlib.asynccontextmanager
async def _serving(app: Starlette, path: str) -> AsyncIterator[None]:
    """Serve the app on a Unix socket."""
    server = uvicorn.Server(
        uvicorn.Config(app, uds=path, http="h11", ws="none", lifespan="off", log_config=None, access_log=False)
    )
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    serving = asyncio.create_task(server.serve())
    try:
        yield
    finally:
        server.should_exit = True
        await serving


@contextlib.contextmanager
def _scaling(change: Callable[[int], object]) -> Iterator[None]:
    """Make the signals call `change` on the event loop. The loop's own handlers are no use: the wakeup fd is taken."""
    loop = asyncio.get_running_loop()
    before = {
        number: signal.signal(number, lambda *_, by=by: loop.call_soon_threadsafe(change, by))
        for name, by in _SCALING.items()
        if (number := getattr(signal, name, None)) is not None
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
