"""Group commits: concurrent writes share a transaction, and a write that fails costs no other."""

import asyncio
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest

from splitfuse.engine.errors import UnavailableError
from splitfuse.server.results.batches.group_writer import GroupWriter
from splitfuse.server.results.durable.batch_rows import BatchChanges
from splitfuse.server.results.durable.checksum import DamagedError


class Store:
    """Store that notes the lines a transaction begins; refuses those of "damaged", and all lines while it is `away`."""

    def __init__(self) -> None:
        self.written: list[list[int]] = []
        self.num_away = 0

    async def use(self, function: Callable[[Any], None]) -> None:
        await asyncio.sleep(0)
        function(self)

    def write_batches(self, changes: BatchChanges) -> None:
        if self.num_away:
            self.num_away -= 1
            raise UnavailableError("away")
        if any(batch_id == "damaged" for batch_id, _ in changes.begun):
            raise DamagedError
        self.written.append([line for _, line in changes.begun])


def line(number: int, batch_id: str = "b") -> BatchChanges:
    return BatchChanges(begun=((batch_id, number),))


async def test_what_waits_together_is_one_transaction_in_order() -> None:
    store = Store()
    writer = GroupWriter(store, retry_s=0)  # type: ignore[arg-type]
    await asyncio.gather(*(writer.write(line(number)) for number in range(4)))
    assert list(chain.from_iterable(store.written)) == [0, 1, 2, 3]
    assert len(store.written) < 4


async def test_one_that_cannot_be_written_costs_only_itself() -> None:
    store = Store()
    writer = GroupWriter(store, retry_s=0)  # type: ignore[arg-type]
    calls = [writer.write(line(0)), writer.write(line(1, "damaged")), writer.write(line(2))]
    first, damaged, last = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, last) == (None, None)
    assert isinstance(damaged, DamagedError)
    assert sorted(chain.from_iterable(store.written)) == [0, 2]
    await writer.write(line(3))
    assert store.written[-1] == [3], "it goes on"


async def test_while_the_store_is_away_it_is_tried_again() -> None:
    store = Store()
    store.num_away = 3
    writer = GroupWriter(store, retry_s=0)  # type: ignore[arg-type]
    await writer.write(line(7))
    assert store.written == [[7]]


async def test_a_closed_one_writes_no_more() -> None:
    store = Store()
    store.num_away = 1_000_000
    writer = GroupWriter(store, retry_s=0)  # type: ignore[arg-type]
    task = asyncio.create_task(writer.write(line(1)))
    await asyncio.sleep(0)
    writer.close()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(task), 0.05)
    assert not store.written
    task.cancel()
