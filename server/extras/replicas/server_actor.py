"""ServerActor: the actor that starts one server on a machine of a Ray cluster.

This module does not need Ray to import.
"""

from .server_process import ServerProcess


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
