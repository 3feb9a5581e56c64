"""A replica restarts after every end, later each time it ends young, and never after `stop`."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.server.extras.replicas.placement import Address, PlacementLostError
from splitfuse.server.extras.replicas.replica import Replica

PLACE = Address("127.0.0.1", 4000)


class Server:
    """Server that ends when `end` is called, with a code or an error."""

    address = PLACE

    def __init__(self) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.is_closed = False

    async def wait(self) -> int:
        return await self.ended

    async def stop(self) -> None:
        self.ended.set_result(0)

    async def close(self) -> None:
        self.is_closed = True


class Placement:
    """Placement with room while `has_room` is set."""

    has_gpus = False
    num_cpus = 2

    def __init__(self) -> None:
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.servers: list[Server] = []
        self.is_asked = asyncio.Event()

    async def start(self, number: int, config: str) -> Server:
        self.is_asked.set()
        await self.has_room.wait()
        self.servers.append(Server())
        return self.servers[-1]

    def close(self) -> None:
        pass


class Haproxy:
    """HAProxy that counts its calls; `pointed` is set at every start."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.pointed = asyncio.Event()

    async def point(self, name: str, address: Address) -> None:
        self.told.append(f"point {name} {address}")
        self.pointed.set()

    async def remove(self, name: str) -> None:
        self.told.append(f"remove {name}")


class World:
    def __init__(self, *, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.placement, self.haproxy = Placement(), Haproxy()
        parts: dict[str, Any] = {"placement": self.placement, "haproxy": self.haproxy}
        self.replica = Replica(1, "{}", clock=clock, **parts)
        self.run = asyncio.create_task(self.replica.run())

    async def started(self) -> Server:
        """Wait for the next server and return it."""
        await self.haproxy.pointed.wait()
        self.haproxy.pointed.clear()
        return self.placement.servers[-1]


async def test_a_server_that_ends_is_replaced() -> None:
    times = iter([0.0, 100.0, 100.0, 200.0, 200.0])  # each lives long
    world = World(clock=lambda: next(times))
    first = await world.started()
    first.ended.set_result(-9)
    second = await world.started()
    assert first.is_closed
    second.ended.set_exception(PlacementLostError("the machine is gone"))
    await world.started()
    assert world.replica.address == PLACE
    await world.replica.stop()
    await world.run
    assert world.haproxy.told == [f"point r1 {PLACE}"] * 3 + ["remove r1"]
    assert all(server.is_closed for server in world.placement.servers)


async def test_one_that_ends_young_waits_longer_each_time(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.ERROR):
        (await world.started()).ended.set_result(1)
        (await world.started()).ended.set_result(1)
        while len(caplog.messages) < 2:  # noqa: ASYNC110 - a log tells no event
            await asyncio.sleep(0)
    assert [message.rpartition(" in ")[2] for message in caplog.messages] == ["1 s", "2 s"]
    await world.replica.stop()  # in the pause
    await asyncio.wait_for(world.run, 60)
    assert len(world.placement.servers) == 2


async def test_a_wrong_setting_is_no_reason_to_try_again() -> None:
    world = World()
    (await world.started()).ended.set_result(2)
    with pytest.raises(ConfigError, match="replica r1 could not start"):
        await world.run


async def test_it_can_be_stopped_while_there_is_no_room() -> None:
    world = World()
    world.placement.has_room.clear()
    await world.placement.is_asked.wait()
    await world.replica.stop()
    await world.run
    assert world.placement.servers == []
