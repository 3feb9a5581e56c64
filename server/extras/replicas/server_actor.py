"""ServerActor: what Ray runs on a machine of its cluster: it starts one server there. Imports nothing of Ray itself."""

from .server_process import ServerProcess


class ServerActor:
    """An actor whose methods Ray calls from elsewhere; so they take and give plain values."""

    def __init__(self) -> None:
        self._server: ServerProcess | None = None

    async def start(self, name: str, config: str, host: str | None) -> tuple[str, int]:
        """Start it on this address, or on the one by which the cluster knows the machine; host and port.

        Raises OSError.
        """
        if host is None:
            import ray

            host = ray.util.get_node_ip_address()
        self._server = await ServerProcess.start(name, config, host=host)
        return self._server.address.host, self._server.address.port

    async def wait(self) -> int:
        """Its exit code, when it has ended."""
        assert self._server is not None
        return await self._server.wait()

    async def stop(self) -> None:
        """Send it SIGTERM."""
        assert self._server is not None
        await self._server.stop()
