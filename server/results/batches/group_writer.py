"""GroupWriter: writes the changes of many lines in one transaction."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import chain

from ....engine.errors import UnavailableError
from ..durable.batch_rows import BatchChanges
from ..durable.memory_store import StoreUser

_Waiting = tuple[BatchChanges, asyncio.Future[None]]


class GroupWriter:
    """Writer in the order of the calls. It retries while the store fails."""

    def __init__(self, store: StoreUser, *, retry_s: float) -> None:
        self._retry_s = retry_s
        self._store = store
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def write(self, changes: BatchChanges) -> None:
        """Write the changes; returns once these and all earlier ones are written. A cancelled caller's changes are
        written too.

        Raises the store's errors about these changes, but not UnavailableError.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((changes, written))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        await written

    def close(self) -> None:
        """Stop writing."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            try:
                await self._write(group)
            except Exception:  # waiting of them cannot be written: write each alone
                for waiting in group:
                    try:
                        await self._write([waiting])
                    except Exception as exc:
                        if not waiting[1].done():
                            waiting[1].set_exception(exc)

    async def _write(self, group: Sequence[_Waiting]) -> None:
        changes = _join(changes for changes, _ in group)
        while True:
            try:
                await self._store.use(lambda store: store.write_batches(changes))
            except UnavailableError:
                await asyncio.sleep(self._retry_s)
            else:
                break
        for _, written in group:
            if not written.done():
                written.set_result(None)


def _join(changes: Iterable[BatchChanges]) -> BatchChanges:
    group = list(changes)
    return BatchChanges(
        *(tuple(chain.from_iterable(getattr(change, name) for change in group)) for name in BatchChanges.__slots__)
    )
