"""Stand-in server per test session with a fresh script per test, and a caller of either kind for the server."""

import socket
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import httpx
import pytest

from splitfuse.client import Server, serve

from .callers import CALLERS, Caller
from .server_thread import ServerThread
from .stand_in import Script, StandIn

MakeCaller = Callable[..., Caller]
KEY = "a-key-for-tests"

# A client reads all certificates, which takes 18 ms of processor time. All of them have the same, and none speaks TLS.
httpx._transports.default.create_ssl_context = cache(httpx.create_ssl_context)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove settings from the environment of the test run."""
    monkeypatch.delenv("SPLITFUSE_BASE_URL", raising=False)
    monkeypatch.delenv("SPLITFUSE_API_KEY", raising=False)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Start `splitfuse serve` on the demo model; the key makes every test check that the client sends a key."""
    with serve(api_key=KEY, dtype="float32", max_num_seqs=8, kv_cache_memory_bytes="64MiB") as server:
        yield server


@pytest.fixture(scope="session")
def running_stand_in() -> Iterator[StandIn]:
    """Start the stand-in server."""
    stand_in = StandIn()
    with ServerThread(stand_in.app) as server:
        stand_in.url = server.url
        yield stand_in


@pytest.fixture
def stand_in(running_stand_in: StandIn) -> Iterator[StandIn]:
    """Give the stand-in server a new script."""
    running_stand_in.script = Script()
    yield running_stand_in
    running_stand_in.script.cancelled.set()  # ends streams that are still held


@pytest.fixture
def script(stand_in: StandIn) -> Script:
    """Return the script of the stand-in server, which also records requests."""
    return stand_in.script


@pytest.fixture(params=CALLERS, ids=["plain", "async"])
def make_caller(request: pytest.FixtureRequest) -> Iterator[MakeCaller]:
    """Return a factory for callers of one kind; close its callers at the end."""
    callers: list[Caller] = []

    def make(url: str | None = None, **options: Any) -> Caller:
        callers.append(request.param(url, **options))
        return callers[-1]

    yield make
    for caller in callers:
        caller.close()


@pytest.fixture
def caller(make_caller: MakeCaller, stand_in: StandIn) -> Caller:
    """Return a caller of the stand-in server."""
    return make_caller(stand_in.url)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a port without a listener, bound so that no other process can take it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
