"""Every route of /openapi.json takes the largest and nastiest bodies that its schema allows; /ready answers meanwhile.

Each body is in `tests/server/nasty_bodies.py`. SPLITFUSE_TEST_ALL=1 sends all of them, which takes an hour.
"""

import contextlib
import http.client
import json
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from nasty_bodies import Document, Named, long_answers, many_fields
from serving import ServerProcess
from tiny_encoders import save_pooled

from splitfuse.server.extension import declared

MAX_S, MAX_MIB = 0.25, 100
NUM_BODIES = 10**9 if os.environ.get("SPLITFUSE_TEST_ALL") else 2  # for each route
NUM_OUTPUTS = 64 if os.environ.get("SPLITFUSE_TEST_ALL") else 8
SMALL = ("--max-model-len", "512", "--num-kv-blocks", "200")


class Probe(threading.Thread):
    """Asks /ready again and again beside a request; notes the longest answer and the most memory."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection("127.0.0.1", httpx.URL(server.url).port, timeout=300)
        self._processes = [Path("/proc", str(pid)) for pid in server.pids]
        self._has_ended = threading.Event()
        self.longest_s = 0.0
        self.num_answers = 0
        self._before_mib = self._mib()
        self.grown_mib = 0.0

    def __enter__(self) -> "Probe":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self.join()
        self._connection.close()

    def run(self) -> None:
        """Probe until the request has ended. Time in which threads wait for a core counts as the machine's."""
        while not self._has_ended.wait(0.005) or not self.num_answers:
            start, waited = time.monotonic(), self._waited_s()
            self._connection.request("GET", "/ready")
            answer = self._connection.getresponse()
            answer.read()
            self.longest_s = max(self.longest_s, time.monotonic() - start - (self._waited_s() - waited))
            self.grown_mib = max(self.grown_mib, self._mib() - self._before_mib)
            self.num_answers += answer.status == 200

    def _waited_s(self) -> float:
        waits = 0
        for thread in (self._processes[0] / "task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                waits += int((thread / "schedstat").read_text().split()[1])
        return waits / 1e9

    def _mib(self) -> float:
        texts = [(process / "status").read_text() for process in self._processes]
        return sum(int(re.findall(r"RssAnon:\s+(\d+) kB", text)[0]) for text in texts) / 1024


def chosen(found: Document, path: str) -> list[Named]:
    """Return NUM_BODIES of a route's bodies, spread over all fields, always the same ones."""
    bodies = list(found.bodies(path))
    step = max(1, len(bodies) // NUM_BODIES)
    return bodies[step // 2 :: step][:NUM_BODIES]


def check(server: ServerProcess, path: str, bodies: Iterable[Named]) -> list[str]:
    """Send the bodies; return what was wrong. A measure that fails alone is taken a second time."""
    faults: list[str] = []
    with httpx.Client(base_url=server.url, timeout=300) as client:
        for name, make in bodies:
            content = json.dumps(make()).encode()
            for attempt in range(2):
                with Probe(server) as probe:
                    status = client.post(path, content=content).status_code
                fits = probe.longest_s < MAX_S and probe.grown_mib < MAX_MIB
                if status < 500 and fits:
                    break
                if status == 503 or not attempt:  # the machine is too busy to compile a grammar, or it was noise
                    continue
                seen = f"{status}, /ready within {probe.longest_s:.2f} s, {probe.grown_mib:.0f} MiB more"
                faults.append(f"{path} [{name[:80]}]: {seen}")
    return faults


def document(server: ServerProcess) -> Document:
    return Document(httpx.get(server.url + "/openapi.json", timeout=60).json())


@pytest.fixture(scope="module", params=["0", "1"], ids=["one process", "front"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    results = str(tmp_path_factory.mktemp("kept") / "results.db")
    with ServerProcess(*SMALL, "--enable-lora", "--results", results, "--api-server-count", request.param) as server:
        yield server


def test_every_route_of_a_model_that_makes_text(server: ServerProcess) -> None:
    found = document(server)
    assert len(found.posts) > 20
    assert [fault for path in found.posts for fault in check(server, path, chosen(found, path))] == []
    assert check(server, "/results/backup", found.bodies("/results/backup")) == []


@pytest.mark.parametrize("path", ["/weights", "/results/backup", "/v1/load_lora_adapter"])
def test_a_path_has_no_million_folders(server: ServerProcess, path: str) -> None:
    folders = "/a" * 10**6
    body = {"lora_name": "a", "lora_path": folders} if "lora" in path else {"path": folders}
    answer = httpx.post(server.url + path, json=body, timeout=60)
    assert answer.status_code == 400
    assert "path must be a string of at most 4096 characters" in answer.text


@pytest.mark.parametrize("path", ["/tokenize", "/generate"])
def test_a_text_is_not_tokenized_for_nothing(server: ServerProcess, path: str) -> None:
    body = {"prompt": "1" * 2_000_000, **({} if path == "/tokenize" else {"truncate_prompt_tokens": 5})}
    assert check(server, path, [("long", lambda: body)]) == []
    answer = httpx.post(server.url + path, json=body, timeout=60)
    assert answer.status_code == 400
    assert "2000000 characters, and at most 524288 are tokenized at once" in answer.text


POOLING = "server/apis/embeddings"
UNLISTED = {"/api/embed": {"input": ["x"] * 2048}, "/api/embeddings": {"prompt": "x" * 10**6}}
REST = {
    **dict.fromkeys(UNLISTED, "sent to a model that pools"),
    "/v1/files": "bytes of uploads have their tests: behaviour/test_greedy_keys.py, results/batches/test_form.py",
    **dict.fromkeys(("/api/pull", "/api/push", "/api/create", "/api/copy"), "no field is read but the model's name"),
}


def declared_posts() -> Iterator[tuple[str, APIRoute]]:
    """Yield the routes for POST in the sources, each with its folder."""
    for extension in declared():
        for route in extension.load_router().routes if extension.router else ():
            if isinstance(route, APIRoute) and "POST" in route.methods:
                yield extension.folder, route


def test_no_route_of_the_sources_is_left_out(server: ServerProcess) -> None:
    found = document(server)
    sent = {route.endpoint for folder, route in declared_posts() if route.path in found.posts or folder == POOLING}
    others = {route.path for _, route in declared_posts() if route.endpoint not in sent}  # but other names of those
    assert others - found.without_body == REST.keys()


def test_every_route_of_a_model_that_pools(tmp_path: Path) -> None:
    save_pooled("bert", tmp_path)
    with ServerProcess(str(tmp_path)) as server:
        found = document(server)
        routes = [route for folder, route in declared_posts() if folder == POOLING]
        paths = [route.path for route in routes if route.path in found.posts]
        assert {route.endpoint for route in routes if route.path in paths} == {route.endpoint for route in routes}
        assert [fault for path in paths for fault in check(server, path, chosen(found, path))] == []
        assert check(server, "/pooling", [("long", lambda: {"input": ["x" * 400] * 256})]) == []
        assert check(server, "/v1/embeddings", [("long", lambda: {"input": ["x"] * 2048})]) == []
        for path, body in UNLISTED.items():
            many = [("long", lambda body=body: body), ("many", lambda body=body: {**body, **many_fields("k{}")})]
            assert check(server, path, many) == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_long_answers(server: ServerProcess, path: str) -> None:
    assert check(server, path, long_answers(path, n=NUM_OUTPUTS)) == []
