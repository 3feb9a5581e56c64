"""Supervisor of `serve --replicas N`: starts HAProxy and the replicas behind it, and drains them on a signal."""

import asyncio
import contextlib
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette

from ... import package_version
from ...process.banner import curl, reachable
from ...process.exit import END_S
from ...process.file_limits import raise_file_limit
from ...process.log_format import as_line, set_up_logging
from ...process.start import listen
from ...process.stop_signals import StopSignals
from . import ReplicaSettings
from .haproxy import Haproxy
from .haproxy_config import HaproxyConfig
from .local_placement import LocalPlacement
from .operations import Operations, ReplicaClient
from .placement import Address, Placement
from .ray_placement import RayPlacement
from .replica import Replica
from .replica_settings import check_replicas, config_of, tags_of

_ASK_S = 0.5
_OWN_END_S = 5.0  # after the last replica, for HAProxy and Ray


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
        self._client = ReplicaClient()
        self._replicas = [self._replica(number) for number in range(self._count)]

    async def run(self) -> None:
        """Run until a signal has come and all replicas have drained. Raises ConfigError."""
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        operations = Operations(self._addresses, self._client, metrics_prefix=self._settings.metrics_prefix)
        async with contextlib.AsyncExitStack() as stack:  # exits in reverse order
            stack.push_async_callback(self._client.close)
            await stack.enter_async_context(_serving(operations.app(), self._config.operations_socket))
            stack.push_async_callback(self._haproxy.stop)
            await self._haproxy.start()
            runs = [asyncio.create_task(replica.run()) for replica in self._replicas]
            stack.push_async_callback(self._drain, runs)
            limit_s = self._settings.drain_timeout + END_S + _OWN_END_S
            self._signals.on_stop(lambda: loop.call_soon_threadsafe(stop.set), limit_s=limit_s)
            await self._until_stopped(stop, runs)

    def _addresses(self) -> dict[str, Address | None]:
        """Return each replica's address by name, None while it has none."""
        return {replica.name: replica.address for replica in self._replicas}

    async def _drain(self, runs: Sequence[asyncio.Future[Any]]) -> None:
        """Stop all replicas and wait for their ends."""
        await asyncio.gather(*(replica.stop() for replica in self._replicas))
        await asyncio.gather(*runs, return_exceptions=True)

    def _replica(self, number: int) -> Replica:
        tags = list(self._config.tags.values())
        threads = None if self._placement.has_gpus else max(1, self._placement.num_cpus // self._count)
        config = config_of(self._settings, tag=tags[number], num_threads=threads)
        return Replica(number, config, placement=self._placement, haproxy=self._haproxy)

    async def _until_stopped(self, stop: asyncio.Event, runs: Sequence[asyncio.Future[Any]]) -> None:
        """Wait for a stop signal. Raises ConfigError if a replica or HAProxy cannot start."""
        ends: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(stop.wait()),
            asyncio.ensure_future(self._haproxy.run()),
        ]
        announcing = asyncio.create_task(self._announce())
        try:
            done, _ = await asyncio.wait([*ends, *runs], return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()
            text = f"replicas finish their requests, at most {self._settings.drain_timeout:g} s"
            print(as_line(f"splitfuse: {text}; a second signal ends at once"), file=sys.stderr, flush=True)
        finally:
            for task in (announcing, *ends):
                task.cancel()

    async def _announce(self) -> None:
        """Print the banner once HAProxy has found a replica that is ready."""
        place = Address(reachable(self._settings.host), self._listener.getsockname()[1])
        while not await self._client.is_ready(place):  # noqa: ASYNC110 - another process tells no event
            await asyncio.sleep(_ASK_S)
        print(as_line(_banner(self._settings, f"http://{place}")), flush=True)


def _banner(settings: ReplicaSettings, url: str) -> str:
    warning = "a replica that is killed takes its 202s with it; --results postgresql://… keeps them"
    rows = {
        "replicas": f"{settings.replicas}, the first is ready",
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
