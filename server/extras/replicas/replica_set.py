"""ReplicaSet: the running replicas, and changes of their number."""

import asyncio
from collections.abc import Callable

from .placement import Address
from .replica import Replica


class ReplicaSet:
    """At most `most` replicas, created by `make` from their numbers.

    `failure` gets the error of a replica that cannot start.
    """

    def __init__(self, make: Callable[[int], Replica], *, most: int) -> None:
        self._make = make
        self._most = most
        self.count = 0  # replicas that take new work; written only here
        self._replicas: dict[int, Replica] = {}
        self._runs: dict[int, asyncio.Task[None]] = {}
        self._retirements: dict[int, asyncio.Task[None]] = {}
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def addresses(self) -> dict[str, Address | None]:
        """Return each replica's address by name, None while it has none."""
        return {replica.name: replica.address for replica in self._replicas.values()}

    def scale(self, count: int) -> None:
        """Start or retire replicas to reach `count`, within 1 and `most`.

        A retiring replica keeps its number until its end.
        """
        self.count = min(max(count, 1), self._most)
        self._start_missing()
        for number in self._active()[self.count :]:
            self._retirements[number] = asyncio.create_task(self._replicas[number].retire())

    async def drain(self) -> None:
        """Stop all replicas and wait for their ends."""
        self.count = 0
        await asyncio.gather(*(replica.stop() for replica in self._replicas.values()))
        await asyncio.gather(*self._runs.values(), *self._retirements.values(), return_exceptions=True)

    def _active(self) -> list[int]:
        return sorted(self._replicas.keys() - self._retirements.keys())

    def _start_missing(self) -> None:
        free = [number for number in range(self._most) if number not in self._replicas]
        for number in free[: max(0, self.count - len(self._active()))]:
            self._start(number)

    def _start(self, number: int) -> None:
        self._replicas[number] = self._make(number)
        self._runs[number] = asyncio.create_task(self._replicas[number].run())
        self._runs[number].add_done_callback(lambda run: self._on_end(number, run))

    def _on_end(self, number: int, run: "asyncio.Task[None]") -> None:
        del self._replicas[number], self._runs[number]
        if self._retirements.pop(number, None) is not None:
            self._start_missing()
        error = None if run.cancelled() else run.exception()
        if error is not None and not self.failure.done():
            self.failure.set_exception(error)
