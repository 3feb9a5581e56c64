"""Placement: the port to machines for replicas. `local_placement.py` and `ray_placement.py` implement it."""

from typing import NamedTuple, Protocol


def name_of(number: int) -> str:
    """Return the name of the replica with this number, from 0, for logs, metrics and ids."""
    return f"r{number}"


class Address(NamedTuple):
    """Address where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class PlacementLostError(Exception):
    """The machine of a server is gone, and the server with it."""


class RunningServer(Protocol):
    """One server process, somewhere."""

    @property
    def address(self) -> Address:
        """Address where the server listens once it has started."""

    async def wait(self) -> int:
        """Wait until the server has ended. Returns its exit code. Raises PlacementLostError."""

    async def stop(self) -> None:
        """Send SIGTERM: the server drains, then ends."""

    async def close(self) -> None:
        """Release the server's resources, and end a process that still runs."""


class Placement(Protocol):
    """Finds a machine for each replica."""

    @property
    def has_gpus(self) -> bool:
        """True if replicas run on GPUs."""

    @property
    def num_cpus(self) -> int:
        """Cores that all replicas share."""

    async def start(self, number: int, config: str) -> RunningServer:
        """Start a replica with a config file of this text. Waits until a machine is free.

        Raises PlacementLostError, OSError.
        """

    def close(self) -> None:
        """Close the placement after all replicas have ended."""
