"""Requests through a real HAProxy, by both of our files: each id leads to the server that made it, new work to all."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from answering import answering, read_body, reply

from splitfuse.client.hosts import free_port
from splitfuse.server.extras.replicas.haproxy_config import HaproxyConfig
from splitfuse.server.extras.replicas.placement import Address
from splitfuse.server.jobs.job import new_id

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy: apt-get install haproxy")

DOCKER = Path(__file__).parents[4] / "docker"
PATHS = (*("/result/{}", "/result/{}/stream", "/v1/responses/resp_{}", "/v1/files/file-{}", "/v1/batches/batch_{}"),)
BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/responses", {"input": "x", "previous_response_id": "resp_{}"}),
    ("/v1/batches", {"endpoint": "/v1/responses", "input_file_id": "file-{}"}),
)


def named(name: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return the answer of a server that says its name."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        read_body(request)
        reply(request, body=name.encode())

    return answer


def of_docker(folder: Path, ports: dict[str, int], port: int) -> tuple[Path, dict[str, str]]:
    env = {f"SERVER_{name.upper()}": f"127.0.0.1:{upstream}" for name, upstream in ports.items()}
    env |= {"BIND": f"127.0.0.1:{port}", "BIND_OPERATIONS": f"127.0.0.1:{free_port('127.0.0.1')}"}
    return DOCKER / "haproxy.cfg", env


def of_supervisor(folder: Path, ports: dict[str, int], port: int) -> tuple[Path, dict[str, str]]:
    tags = {name: f"{name}-" for name in ports}
    shared = {"listener_fd": 3, "max_connections": 4096, "has_shared_results": True}
    config = HaproxyConfig(tags=tags, folder=str(folder), **shared)  # type: ignore[arg-type]
    text = config.text({name: Address("127.0.0.1", upstream) for name, upstream in ports.items()})
    (folder / "haproxy.cfg").write_text(text.replace("bind fd@3", f"bind 127.0.0.1:{port}"))
    return folder / "haproxy.cfg", {}


@pytest.fixture(scope="module", params=[of_docker, of_supervisor], ids=lambda written: written.__name__)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Yield a client of HAProxy before the servers a and b."""
    port = free_port("127.0.0.1")
    with ExitStack() as stack:
        urls = {name: stack.enter_context(answering(named(name))) for name in ("a", "b")}
        ports = {name: int(url.rpartition(":")[2]) for name, url in urls.items()}
        file, variables = request.param(tmp_path_factory.mktemp("haproxy"), ports, port)
        command, env = ["haproxy", "-db", "-f", file], {**os.environ, **variables}
        process = stack.enter_context(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL))
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False))
        try:
            until_both_answer(client)
            yield client
        finally:
            process.kill()


def until_both_answer(client: httpx.Client) -> None:
    """Wait until HAProxy has found both servers ready."""
    deadline = time.monotonic() + 60
    seen: set[str] = set()
    while seen != {"a", "b"}:
        assert time.monotonic() < deadline, seen
        try:
            seen |= {client.post("/generate", json={"prompt": "x"}).text}
        except httpx.TransportError:
            time.sleep(0.05)


def filled(value: Any, seq_id: str) -> Any:
    """Put an id into a body."""
    if isinstance(value, dict):
        return {key: filled(item, seq_id) for key, item in value.items()}
    return value.format(seq_id)


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("path", PATHS)
def test_an_id_in_the_path_leads_to_its_server(client: httpx.Client, path: str, name: str) -> None:
    for _ in range(4):
        assert client.get(path.format(new_id("", f"{name}-"))).text == name


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize(("path", "body"), BODIES, ids=str)
def test_an_id_in_the_body_leads_to_its_server(
    client: httpx.Client, path: str, body: dict[str, Any], name: str
) -> None:
    for _ in range(4):
        assert client.post(path, json=filled(body, new_id("", f"{name}-"))).text == name


@pytest.mark.parametrize("path", ["/v1/responses", "/generate"])
def test_new_work_goes_to_all(client: httpx.Client, path: str) -> None:
    assert {client.post(path, json={"input": "x", "previous_response_id": None}).text for _ in range(8)} == {"a", "b"}
