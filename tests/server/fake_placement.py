"""A placement whose servers are apps with a fake engine in the test's own loop: all but the processes is real."""

import asyncio
import json
from typing import Any

from fake_engine import FakeEngine
from serving import serving

from splitfuse.server.app import build_app
from splitfuse.server.extras.replicas.placement import Address, PlacementLostError
from splitfuse.server.settings import Settings

KILLED = -9


class FakeServer:
    """Server without a process; it listens from `start` on."""

    def __init__(self, config: str) -> None:
        values: dict[str, Any] = json.loads(config)
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        self.engine = FakeEngine()
        self._app = build_app(Settings(**values | lists), self.engine)  # type: ignore[arg-type]
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve())
        self.address = Address("127.0.0.1", 0)

    async def start(self) -> "FakeServer":
        self.address = Address("127.0.0.1", int((await self._url).rpartition(":")[2]))
        return self

    def end(self, code: int) -> None:
        """Behave like a process that ends with this code: connections break."""
        if not self._code.done():
            self._code.set_result(code)

    def lose(self) -> None:
        """Behave like a server whose machine is gone."""
        self._code.set_exception(PlacementLostError("the machine is gone"))

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    async def stop(self) -> None:
        async def drain() -> None:
            await self._app.state.service.lifecycle.drain()
            self.end(0)

        self._draining = asyncio.create_task(drain())

    async def close(self) -> None:
        self.end(KILLED)
        await self._task

    async def _serve(self) -> None:
        async with serving(self._app) as url:
            await self._app.state.service.lifecycle.loading
            self._url.set_result(url)
            await asyncio.wait([self._code])


class FakePlacement:
    """`servers`: the latest one of each replica, by number."""

    has_gpus = False
    num_cpus = 2

    def __init__(self) -> None:
        self.servers: dict[int, FakeServer] = {}
        self.configs: list[dict[str, Any]] = []
        self.has_started = asyncio.Event()

    async def start(self, number: int, config: str) -> FakeServer:
        self.configs.append(json.loads(config))
        self.servers[number] = server = FakeServer(config)
        self.has_started.set()
        return await server.start()

    def close(self) -> None:
        pass
