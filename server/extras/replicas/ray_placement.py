"""RayPlacement: replicas on any free machines of a Ray cluster. Ray starts and watches them, and carries no requests.

Keys go to an actor in a call, from process to process. Arguments of an actor's creation would stay in Ray's store.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import signal
from typing import Any

from ....engine.errors import ConfigError
from .placement import Address, PlacementLostError, name_of
from .server_process import ServerProcess

logger = logging.getLogger(__name__)
# No statistics to Ray's makers, and every line of a replica's log unchanged.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Nothing of ours goes through Ray's object store; its minimum is 75 MB.
_OBJECT_STORE_BYTES = 80_000_000
_PATIENCE_S = 60.0


class ServerActor:
    """Actor whose methods Ray calls from elsewhere, so they take and return plain values."""

    def __init__(self) -> None:
        self._server: ServerProcess | None = None

    async def start(self, name: str, config: str, host: str | None) -> tuple[str, int]:
        """Start the server on this host, or on the machine's address in the cluster. Returns host and port.

        Raises OSError.
        """
        if host is None:
            import ray

            host = ray.util.get_node_ip_address()
        self._server = await ServerProcess.start(name, config, host=host)
        return self._server.address.host, self._server.address.port

    async def wait(self) -> int:
        """Wait until the server has ended. Returns its exit code."""
        assert self._server is not None
        return await self._server.wait()

    async def stop(self) -> None:
        """Send SIGTERM to the server."""
        assert self._server is not None
        await self._server.stop()


class RayPlacement:
    """Placement in the cluster at `address`; "local" starts a cluster that ends with this process. Raises ConfigError.

    `num_cpus_each`, `num_gpus_each`: a replica's reservation; no GPUs if the cluster has none or `device` is cpu.
    """

    def __init__(self, address: str, *, device: str, num_gpus_each: int, num_cpus_each: int | None) -> None:
        os.environ.update({name: value for name, value in _QUIET.items() if name not in os.environ})
        try:
            self._ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as exc:
            raise ConfigError("--ray-address needs Ray: pip install 'splitfuse[ray]'") from exc
        self._join(address)
        self._host = "127.0.0.1" if address == "local" else None  # Ray calls even its only machine by another address
        resources = self._ray.cluster_resources()
        self.num_cpus = int(resources.get("CPU", 1))
        self.has_gpus = device != "cpu" and resources.get("GPU", 0) > 0
        self._needs = {"num_cpus": num_cpus_each or 1, "num_gpus": num_gpus_each if self.has_gpus else 0}

    async def start(self, number: int, config: str) -> "_RayServer":
        """Start a server in an actor. Raises PlacementLostError."""
        actor = self._ray.remote(ServerActor).options(**self._needs, scheduling_strategy="SPREAD").remote()
        started = asyncio.ensure_future(_result(actor.start.remote(name_of(number), config, self._host), self._ray))
        try:
            while not (await asyncio.wait([started], timeout=_PATIENCE_S))[0]:
                logger.warning("replica %s waits: no machine of the Ray cluster has %s", name_of(number), self._needs)
            return _RayServer(actor, Address(*started.result()), self._ray)
        except BaseException:
            started.cancel()
            self._ray.kill(actor)
            raise

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()

    def _join(self, address: str) -> None:
        own = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES} if address == "local" else {}
        handler = signal.getsignal(signal.SIGTERM)
        try:
            self._ray.init(address=address, logging_level=logging.ERROR, **own)
        except Exception as exc:  # Ray's own errors share no class
            raise ConfigError(f"--ray-address {address}: {' '.join(str(exc).split())}") from exc
        finally:
            signal.signal(signal.SIGTERM, handler)  # Ray's handler would exit at once


class _RayServer:
    def __init__(self, actor: Any, address: Address, ray: Any) -> None:
        self._actor = actor
        self.address = address
        self._ray = ray

    async def wait(self) -> int:
        """Wait for the server's exit code. Raises PlacementLostError."""
        code: int = await _result(self._actor.wait.remote(), self._ray)
        return code

    async def stop(self) -> None:
        """Send SIGTERM to the server."""
        with contextlib.suppress(PlacementLostError):  # `wait` reports the loss
            await _result(self._actor.stop.remote(), self._ray)

    async def close(self) -> None:
        """End the actor, and with it the server that it started."""
        self._ray.kill(self._actor)


async def _result(reference: Any, ray: Any) -> Any:
    """Await the result of a call. Raises PlacementLostError if the actor is gone or the call failed."""
    try:
        return await reference
    except ray.exceptions.RayError as exc:
        raise PlacementLostError(f"Ray has lost it: {str(exc).splitlines()[0]}") from exc
