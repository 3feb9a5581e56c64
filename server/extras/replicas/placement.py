"""Where replicas run: what a placement can do. `local_placement.py` and `ray_placement.py` are the two."""

from typing import NamedTuple, Protocol


def name_of(number: int) -> str:
    """What logs, metrics and ids call the replica of this number, from 0."""
    return f"r{number}"


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class PlacementLostError(Exception):
    """The machine on which a server ran is gone, and the server with it."""


class RunningServer(Protocol):
    """One server process, somewhere."""

    @property
    def address(self) -> Address:
        """Where it listens, or will when it has started."""

    async def wait(self) -> int:
        """Its exit code, when it has ended. Raises PlacementLostError."""

    async def stop(self) -> None:
        """Send it SIGTERM: it drains, then ends."""

    async def close(self) -> None:
        """Give back what held it; a process that still runs is ended."""


class Placement(Protocol):
    """Finds a machine for each replica."""

    @property
    def has_gpus(self) -> bool:
        """Whether replicas run on GPUs."""

    @property
    def num_cpus(self) -> int:
        """Cores that all replicas share."""

    async def start(self, number: int, config: str) -> RunningServer:
        """Start the replica of this number with a config file of this text. Waits until there is room.

        Raises PlacementLostError, OSError.
        """

    def close(self) -> None:
        """When all replicas have ended."""
