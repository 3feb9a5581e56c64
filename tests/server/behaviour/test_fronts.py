"""A front with the engine in a process of its own: either may be killed, and the whole drains."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import ServerProcess, SlowSteps, parse_events

ARGS = ("--api-server-count", "1", "--dtype", "float32", "--num-kv-blocks", "128", "--max-model-len", "512")
BODY = {"prompt": "Once upon a time", "max_tokens": 120, "temperature": 0, "ignore_eos": True}


def until(check: Any, *, seconds: float = 60) -> Any:
    """Return the first true value; another process tells no event."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not come")


@pytest.fixture(scope="module")
def server(steps: SlowSteps) -> Iterator[ServerProcess]:
    """A front whose steps can be slow after 20 tokens. The last of its tests ends it."""
    with ServerProcess(*ARGS, program=steps.program) as server:
        yield server


def test_an_engine_that_is_killed_costs_no_token(server: ServerProcess, slow: SlowSteps) -> None:
    bodies = [
        BODY,
        {**BODY, "temperature": 1, "seed": 5, "n": 2, "logprobs": 1, "stop": ["qqq"]},
        {**BODY, "seed": 6, "temperature": 1, "structured_outputs": {"regex": "[a-z ]{150}"}},
    ]
    with httpx.Client(base_url=server.url, timeout=60) as client:
        urls = [client.post("/generate", json=body).json()["result_url"] for body in bodies]
        until(lambda: all(len(client.get(url).json()["token_ids"]) >= 20 for url in urls))
        first = server.engine_pid
        os.kill(first, signal.SIGKILL)
        until(lambda: client.get("/ready").status_code == 503)
        answer = client.post("/generate", json=BODY)
        assert (answer.status_code, answer.headers["retry-after"].isdigit()) == (503, True)
        slow.off()
        whole = [client.get(f"{url}?wait=60").json() for url in urls]
        assert server.engine_pid != first
        assert client.get("/ready").status_code == 200
        for body, result in zip(bodies, whole, strict=True):
            again = client.get(client.post("/generate", json=body).json()["result_url"] + "?wait=60").json()
            for name in ("text", "token_ids", "finish_reason", "outputs", "logprobs"):
                assert result.get(name) == again.get(name), name
            assert result["status"] == "completed"


@pytest.mark.thorough
def test_an_engine_that_dies_of_a_request_ends_that_request_alone(server: ServerProcess, slow: SlowSteps) -> None:
    """The request may be what kills engines, so it is handed to two others only."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        url = client.post("/generate", json=BODY).json()["result_url"]
        for _ in range(3):
            until(lambda: len(client.get(url).json()["token_ids"]) >= 20 and client.get("/ready").status_code == 200)
            os.kill(server.engine_pid, signal.SIGKILL)
            until(lambda: client.get("/ready").status_code == 503)
        result = client.get(f"{url}?wait=60").json()
        assert (result["status"], result["error"]["type"]) == ("failed", "server_error")
        slow.off()
        until(lambda: client.get("/ready").status_code == 200)
        assert client.post("/v1/completions", json={**BODY, "max_tokens": 3}).status_code == 200


def test_sigterm_drains_both(server: ServerProcess, slow: SlowSteps) -> None:
    with httpx.stream("POST", f"{server.url}/generate", json={**BODY, "stream": True}, timeout=60) as response:
        lines = response.iter_text()
        text = next(lines)
        engine = server.engine_pid
        server.signal()
        slow.off()
        text += "".join(lines)
    events = parse_events(text)
    assert events[-1]["event"] == "done"
    assert events[-1]["data"]["usage"]["completion_tokens"] == 120
    status, stderr = server.wait()
    assert status == 0, stderr
    assert not Path(f"/proc/{engine}").exists()


def test_a_front_has_no_torch_and_little_memory_and_takes_its_engine_along() -> None:
    with ServerProcess(*ARGS, is_forked=False) as server:
        httpx.post(f"{server.url}/v1/completions", json=BODY).raise_for_status()
        front = Path(f"/proc/{server.process.pid}")
        assert "libtorch" not in (front / "maps").read_text()
        assert int((front / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") < 120e6
        for path in ("/stats", "/metrics", "/version", "/v1/models", "/openapi.json"):
            assert httpx.get(server.url + path).status_code == 200
        answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": "a", "model": "x"})
        assert answer.status_code == 404
        assert "libtorch" not in (front / "maps").read_text()
        engine = server.engine_pid
        server.signal(signal.SIGKILL)
        server.wait()
        until(lambda: not Path(f"/proc/{engine}").exists())


def test_what_does_not_work_is_refused_by_name(one_line_here: Any) -> None:
    options = ("serve", "--api-server-count", "1")
    one_line_here((*options, "--replicas", "2"), "--replicas does not work with --api-server-count")
    one_line_here((*options, "--embedding-model", "x"), "--embedding-model does not work with --api-server-count")
