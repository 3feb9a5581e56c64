"""A served fake engine, and a client for it."""

import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastapi.routing
import httpx
import pytest
from fastapi import FastAPI
from httpx._config import DEFAULT_TIMEOUT_CONFIG

sys.path.insert(0, str(Path(__file__).parent))  # for the helpers beside this file: tests/ holds no packages

from fake_engine import FakeEngine
from postgres_server import PostgresServer
from serving import ServerProcess, SlowSteps, is_one_line, serving

from splitfuse.server.app import build_app
from splitfuse.server.cli import main
from splitfuse.server.service import Service
from splitfuse.server.settings import Settings

if TYPE_CHECKING:
    import openai

# httpx gives up after 5 s; beside other busy processes an answer, or a place in its pool, may take longer.
for part in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, part, 60.0)
# A client reads all certificates, which takes 18 ms of processor time. All of them have the same, and none speaks TLS.
for package in ("httpx", "httpx2"):  # the second is the `openai` package's
    if find_spec(package) is not None:
        transports = import_module(f"{package}._transports.default")
        transports.create_ssl_context = cache(transports.create_ssl_context)


def _build_once(build: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Work out what a route takes once for all apps, not with the first request of each, in which it takes 13 ms."""
    contexts: dict[int, tuple[Any, Any]] = {}  # by the route's id; the route itself keeps that id its own

    def build_once(router: Any, route: Any) -> Any:
        if router.include_context.prefix:
            return build(router, route)
        if id(route) not in contexts:
            contexts[id(route)] = (route, build(router, route))
        return contexts[id(route)][1]

    return build_once


if (included := getattr(fastapi.routing, "_IncludedRouter", None)) is not None:
    included._build_effective_context = _build_once(included._build_effective_context)


@dataclass
class Served:
    """Running server with a fake engine."""

    url: str
    engine: FakeEngine
    service: Service
    client: httpx.AsyncClient
    app: FastAPI


@pytest.fixture
def settings() -> Settings:
    """Override in a module or by parametrizing to serve with others."""
    return Settings()


@pytest.fixture
async def served(settings: Settings) -> AsyncIterator[Served]:
    engine = FakeEngine()
    app = build_app(settings, engine)  # type: ignore[arg-type]
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=70) as client:
        await app.state.service.lifecycle.loading
        yield Served(url, engine, app.state.service, client, app)


@pytest.fixture
async def client(served: Served) -> AsyncIterator["openai.AsyncOpenAI"]:
    """Yield the `openai` package's client of the fake engine's server."""
    import openai  # here, for it takes a second

    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Yield a PostgreSQL server that runs."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def steps(tmp_path_factory: pytest.TempPathFactory) -> SlowSteps:
    """Steps of servers that tests share, fast unless a test asks for `slow`."""
    steps = SlowSteps(tmp_path_factory.mktemp("steps"))
    steps.off()
    return steps


@pytest.fixture
def slow(steps: SlowSteps) -> Iterator[SlowSteps]:
    """Have a request of many tokens outlast the test, unless the test ends that."""
    steps.on()
    yield steps
    steps.off()


@pytest.fixture
def slow_here(slow: SlowSteps, monkeypatch: pytest.MonkeyPatch) -> SlowSteps:
    """Like `slow`, but for an engine in the test's own process."""
    slow.patch(monkeypatch)
    return slow


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of the real server in both forms where their mark asks for it."""
    is_marked = metafunc.definition.get_closest_marker("both_forms") is not None
    if is_marked and "live_server" in metafunc.fixturenames:
        metafunc.parametrize("live_server", [0, 1], ids=["one process", "front"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def live_server(steps: SlowSteps, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """`splitfuse serve` with the demo model: a real process, a real engine, a small cache."""
    small = ("--dtype", "float32", "--num-kv-blocks", "128", "--max-model-len", "512")
    form = ("--api-server-count", str(getattr(request, "param", 0)))
    with ServerProcess(*small, *form, program=steps.program) as server:
        yield server


@pytest.fixture
async def live(live_server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the real server."""
    async with httpx.AsyncClient(base_url=live_server.url, timeout=60) as client:
        yield client


@pytest.fixture
async def sdk(live_server: ServerProcess) -> AsyncIterator["openai.AsyncOpenAI"]:
    """Yield the `openai` package's client of the real server."""
    import openai  # here, for it takes a second

    async with openai.AsyncOpenAI(base_url=f"{live_server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def one_line_here(capfd, caplog):
    """Run a command in this process that must fail with one line; this saves the start of Python and torch."""

    def run(args, *texts):
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        code = main(args)
        assert {number: signal.getsignal(number) for number in handlers} == handlers
        out, err = capfd.readouterr()
        assert (code, out) == (2, "")
        is_one_line(err, *texts)
        assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []

    return run
