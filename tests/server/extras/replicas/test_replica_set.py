"""Number of replicas, and the numbers that they have."""

import asyncio
from typing import Any

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.server.extras.replicas.replica_set import ReplicaSet


class Fake:
    """Replica that ends when it is stopped or, while retiring, when nothing is left."""

    def __init__(self, number: int) -> None:
        self.name, self.address = f"r{number}", None
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_empty = asyncio.Event()

    async def run(self) -> None:
        await self.end

    async def stop(self) -> None:
        if not self.end.done():
            self.end.set_result(None)

    async def retire(self) -> None:
        await self.is_empty.wait()
        await self.stop()


class Made(dict[int, Fake]):
    def __call__(self, number: int) -> Any:
        self[number] = Fake(number)
        return self[number]


def make(most: int) -> tuple[ReplicaSet, Made]:
    made = Made()
    return ReplicaSet(made, most=most), made


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_last_ones_retire_and_keep_their_numbers_until_they_end() -> None:
    replicas, made = make(3)
    replicas.scale(3)
    replicas.scale(1)
    await settled()
    assert (replicas.count, list(replicas.addresses())) == (1, ["r0", "r1", "r2"])
    made[2].is_empty.set()
    await settled()
    assert list(replicas.addresses()) == ["r0", "r1"]
    retiring = made[1]
    replicas.scale(3)
    assert made[1] is retiring  # a retiring replica keeps its number
    retiring.is_empty.set()
    await settled()
    assert made[1] is not retiring
    assert sorted(replicas.addresses()) == ["r0", "r1", "r2"]
    await replicas.drain()


@pytest.mark.parametrize(("wanted", "count"), [(0, 1), (-3, 1), (9, 4), (2, 2)])
async def test_there_is_one_at_least_and_no_more_than_can_be(wanted: int, count: int) -> None:
    replicas, _ = make(4)
    replicas.scale(wanted)
    assert replicas.count == count
    await replicas.drain()
    assert replicas.addresses() == {}


async def test_one_that_cannot_start_is_told() -> None:
    replicas, made = make(2)
    replicas.scale(2)
    made[1].end.set_exception(ConfigError("no"))
    with pytest.raises(ConfigError, match="no"):
        await replicas.failure
    await replicas.drain()
