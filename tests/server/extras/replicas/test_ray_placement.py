"""Requests to Ray, with a stand-in for it; `make replicas` runs the real one."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.server.extras.replicas.placement import Address, PlacementLostError
from splitfuse.server.extras.replicas.ray_placement import RayPlacement, ServerActor

SECRET = '{"api_key": ["secret"]}'


class RayError(Exception):
    """Stand-in for ray.exceptions.RayError."""


class Ray(ModuleType):
    """Cluster of one machine. `called` lists the calls; `answers` has the value or error of a method."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.called: list[tuple[Any, ...]] = []
        self.resources = {"CPU": 8.0}
        self.error: Exception | None = None
        self.answers: dict[str, Any] = {"start": ("10.0.0.7", 4000), "wait": 3, "stop": None}
        self.exceptions = SimpleNamespace(RayError=RayError)

    def init(self, **options: Any) -> None:
        self.called.append(("init", options))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
        if self.error is not None:
            raise self.error

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, actor: type) -> Any:
        assert actor is ServerActor
        return self

    def options(self, **needs: Any) -> Any:
        self.called.append(("options", needs))
        return SimpleNamespace(remote=self._made)

    def _made(self, *arguments: Any) -> Any:
        self.called.append(("made", arguments))
        return SimpleNamespace(**{name: SimpleNamespace(remote=self._method(name)) for name in self.answers})

    def _method(self, name: str) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            self.called.append((name, arguments))
            if isinstance(answer := self.answers[name], Exception):
                raise answer
            return await answer if asyncio.isfuture(answer) else answer

        return call

    def kill(self, _actor: Any) -> None:
        self.called.append(("kill",))

    def shutdown(self) -> None:
        self.called.append(("shutdown",))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return ray


def join(**given: Any) -> RayPlacement:
    options: dict[str, Any] = {"device": "auto", "num_gpus_each": 2, "num_cpus_each": None} | given
    return RayPlacement(options.pop("address", "auto"), **options)


async def test_a_server_is_started_where_there_is_room(ray: Ray) -> None:
    placement = join(num_cpus_each=4)
    server = await placement.start(1, SECRET)
    assert server.address == Address("10.0.0.7", 4000)
    assert await server.wait() == 3
    await server.stop()
    await server.close()
    placement.close()
    assert ray.called[1:] == [
        ("options", {"num_cpus": 4, "num_gpus": 0, "scheduling_strategy": "SPREAD"}),
        ("made", ()),  # an actor's arguments stay in Ray's store
        ("start", ("r1", SECRET, None)),
        ("wait", ()),
        ("stop", ()),
        ("kill",),
        ("shutdown",),
    ]
    assert (placement.num_cpus, placement.has_gpus) == (8, False)


async def test_on_one_machine_no_other_reaches_the_replicas(ray: Ray) -> None:
    await join(address="local").start(0, "{}")
    assert ray.called[-1] == ("start", ("r0", "{}", "127.0.0.1"))


@pytest.mark.parametrize(("device", "num_gpus"), [("auto", 2), ("cuda", 2), ("cpu", 0)])
async def test_gpus_are_reserved_where_there_are_any(ray: Ray, device: str, num_gpus: int) -> None:
    ray.resources["GPU"] = 4.0
    await join(device=device).start(0, "{}")
    assert ray.called[1][1]["num_gpus"] == num_gpus


def test_the_first_signal_still_drains(ray: Ray) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    join(address="local")
    assert signal.getsignal(signal.SIGTERM) is handler
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


async def test_what_ray_loses_is_lost(ray: Ray) -> None:
    server = await join().start(0, "{}")
    ray.answers |= {"wait": RayError("The actor died.\nmore"), "stop": RayError("The actor died.")}
    await server.stop()
    with pytest.raises(PlacementLostError, match=r"Ray has lost it: The actor died\.$"):
        await server.wait()
    ray.answers["start"] = RayError("no")
    with pytest.raises(PlacementLostError):
        await join().start(0, "{}")
    assert ray.called[-1] == ("kill",)


async def test_waiting_for_room_is_told_and_can_end(
    ray: Ray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("splitfuse.server.extras.replicas.ray_placement._PATIENCE_S", 0.0)
    ray.answers["start"] = asyncio.get_running_loop().create_future()
    starting = asyncio.create_task(join().start(5, "{}"))
    while not caplog.messages:  # noqa: ASYNC110 - a log tells no event
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert caplog.messages[0] == "replica r5 waits: no machine of the Ray cluster has {'num_cpus': 1, 'num_gpus': 0}"
    assert ray.called[-1] == ("kill",)


def test_a_cluster_that_is_not_there_is_one_line(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    ray.error = ConnectionError("Could not find any running\n Ray instance.")
    with pytest.raises(ConfigError, match=r"^--ray-address auto: Could not find any running Ray instance\.$"):
        join()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"splitfuse\[ray\]"):
        join()
