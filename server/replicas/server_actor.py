"""ServerActor: what Ray runs on a machine of its cluster: it starts one server there. Imports nothing of Ray itself."""

from .server_process import ServerProcess


class ServerActor:
    """An actor whose methods Ray calls from elsewhere; so they take and give plain values."""

    def __init__(self) -> None:
        self._server: ServerProcess | None = None

    async def start(self, name: str, config: str) -> tuple[str, int]:
        """Start it on an address that the cluster reaches; host and port. Raises OSError."""
        import ray

        self._server = await ServerProcess.start(name, config, host=ray.util.get_node_ip_address())
        return self._server.address.host, self._server.address.port

    async def wait(self) -> int:
        """Its exit code, when it has ended."""
        assert self._server is not None
        return await self._server.wait()

    async def stop(self) -> None:
        """Send it SIGTERM."""
        assert self._server is not None
        await self._server.stop()
