"""Router: how much of the line before the models one key may hold."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from splitfuse.engine.errors import QueueFullError
from splitfuse.engine.language.workers.shares import note_sharer
from splitfuse.server.extras.router.router import Router
from splitfuse.server.extras.router.turns import ModelTurn, Turns


class LoadingProcess:
    """Process of a model that loads until it is stopped."""

    def __init__(self, *_: Any) -> None:
        self.ended, self._stopped = asyncio.Event(), asyncio.Event()

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def until_ready(self) -> None:
        await self._stopped.wait()

    async def wait(self) -> int:
        await self._stopped.wait()
        return 0

    async def stop(self, _: float) -> None:
        self._stopped.set()


@pytest.mark.parametrize(
    ("owner", "num_bytes", "num_waiting", "num_beside"),
    [("", 1, 4, 0), ("greedy", 1, 2, 1), ("", 2**24, 4, 0), ("greedy", 2**25, 1, 0)],
    ids=["one key", "several keys", "bytes of one key", "bytes of several"],
)
async def test_a_key_leaves_places_in_the_line_to_others(
    tmp_path: Path, owner: str, num_bytes: int, num_waiting: int, num_beside: int
) -> None:
    async def ask(owner: str) -> None:
        note_sharer(owner)
        async with router.turn("model", num_bytes=num_bytes):
            pass

    async def num_in_line(owner: str) -> int:
        asked = [asyncio.create_task(ask(owner)) for _ in range(5)]
        await asyncio.sleep(0)
        refused = [task for task in asked if task.done()]
        assert all(isinstance(task.exception(), QueueFullError) for task in refused)
        return len(asked) - len(refused)

    settings: Any = SimpleNamespace(max_queue_size=4, drain_timeout=0.0)
    catalog: Any = SimpleNamespace(entries={"model": SimpleNamespace(name="model")})
    turns = Turns([ModelTurn("model")], max_resident=1, turn_s=5.0)
    new_process: Any = LoadingProcess
    router = Router(catalog, tmp_path, settings, turns, new_process=new_process)
    assert await num_in_line(owner) == num_waiting
    assert await num_in_line("other") == num_beside
    await router.drain()
