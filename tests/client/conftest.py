"""A stand-in server per test session with a fresh script per test, and a caller of each kind for it."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from splitfuse.client import Server, serve

from .callers import CALLERS, Caller
from .server_thread import ServerThread
from .stand_in import Script, StandIn

MakeCaller = Callable[..., Caller]
KEY = "a-key-for-tests"


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the test run decides nothing."""
    monkeypatch.delenv("SPLITFUSE_BASE_URL", raising=False)
    monkeypatch.delenv("SPLITFUSE_API_KEY", raising=False)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """`splitfuse serve` on the demo model; with a key, so that every test also shows that the key is sent."""
    with serve(api_key=KEY, dtype="float32", max_num_seqs=8, kv_cache_memory_bytes="64MiB") as server:
        yield server


@pytest.fixture(scope="session")
def running_stand_in() -> Iterator[StandIn]:
    """The server."""
    stand_in = StandIn()
    with ServerThread(stand_in.app) as server:
        stand_in.url = server.url
        yield stand_in


@pytest.fixture
def stand_in(running_stand_in: StandIn) -> Iterator[StandIn]:
    """The server with a new script."""
    running_stand_in.script = Script()
    yield running_stand_in
    running_stand_in.script.cancelled.set()  # ends what is still held


@pytest.fixture
def script(stand_in: StandIn) -> Script:
    """What the server is to do, and what it saw."""
    return stand_in.script


@pytest.fixture(params=CALLERS, ids=["plain", "async"])
def make_caller(request: pytest.FixtureRequest) -> Iterator[MakeCaller]:
    """Makes callers of one kind; closes them."""
    made: list[Caller] = []

    def make(url: str | None = None, **options: Any) -> Caller:
        made.append(request.param(url, **options))
        return made[-1]

    yield make
    for caller in made:
        caller.close()


@pytest.fixture
def caller(make_caller: MakeCaller, stand_in: StandIn) -> Caller:
    """A caller of the stand-in server."""
    return make_caller(stand_in.url)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port without a listener: bound, so that no other process takes it meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
