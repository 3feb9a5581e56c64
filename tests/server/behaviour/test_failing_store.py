"""A disk that takes no more writes under a server that keeps its results there."""

import os
import resource
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from kept_results import ARGS, PROMPT, Reader, comparable
from serving import ServerProcess

LONG = {"prompt": PROMPT, "max_tokens": 300, "temperature": 0, "ignore_eos": True}
SHORT = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"json": SHORT}),
    ("/generate", {"json": {**SHORT, "stream": True, "durable": True}}),
    ("/v1/responses", {"json": {"input": "a", "background": True}}),
    ("/v1/files", {"data": {"purpose": "batch"}, "files": {"file": b"{}"}}),
]
TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {**SHORT, "stream": True}),
    ("/v1/completions", SHORT),
    ("/v1/responses", {"input": "a", "store": False, "max_output_tokens": 5}),
]


def limit_files(server: ServerProcess, size: int) -> None:
    """Limit the files of a server to `size` bytes."""
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def until_ready(client: httpx.Client, status: int) -> httpx.Response:
    deadline = time.monotonic() + 120
    while (answer := client.get("/ready")).status_code != status:
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.02)
    return answer


def test_while_nothing_can_be_written_what_need_not_be_goes_on(tmp_path: Path) -> None:
    args = (*ARGS, "--results", str(tmp_path / "results.db"))
    with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        seq_ids = [client.post("/generate", json=LONG).json()["seq_id"]]
        reader = Reader(f"{server.url}/result/{seq_ids[0]}/stream")
        reader.until_begun()
        limit_files(server, 1)
        for path, request in REFUSED:
            answer = client.post(path, **request)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable"), answer.text
            assert int(answer.headers["retry-after"]) > 0
        for path, body in TAKEN:
            assert client.post(path, json=body).status_code == 200
        told = reader.events()
        assert told[-1]["event"] == "done", "what ran went on"
        assert client.get(f"/result/{seq_ids[0]}").json() == told[-1]["data"]
        assert client.delete(f"/result/{seq_ids[0]}").status_code == 503
        for _ in range(25):  # longer than the journal waits before it tries again
            assert client.get("/ready").json()["error"]["code"] == "store"
            assert client.get("/health").status_code == 200, "the process itself works"
            time.sleep(0.1)
        limit_files(server, resource.RLIM_INFINITY)
        until_ready(client, 200)
        seq_ids.append(client.post("/generate", json=LONG).json()["seq_id"])
        given = client.get(f"/result/{seq_ids[1]}?wait=60").json()
        assert comparable(given) == comparable(told[-1]["data"])
        server.process.kill()
    with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        listed = client.get("/results").json()["data"]
        assert [result["seq_id"] for result in listed] == [seq_ids[1]], "the other was deleted, if late"
        assert comparable(client.get(f"/result/{seq_ids[1]}").json()) == comparable(given)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", ["delete", "delete the log", "move", "replace", "truncate"])
def test_a_file_that_is_taken_away_is_noticed_within_a_second(tmp_path: Path, how: str) -> None:
    path = tmp_path / "results.db"
    with (
        ServerProcess(*ARGS, "--results", str(path)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        seq_id = client.post("/generate", json=SHORT).json()["seq_id"]
        assert client.get(f"/result/{seq_id}?wait=60").json()["status"] == "completed"
        take_away(path, how)
        answer = client.post("/generate", json=SHORT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable"), answer.text
        for _ in range(25):  # longer than the journal waits before it tries again
            assert client.get("/ready").json()["error"]["code"] == "store"
            assert client.get("/health").status_code == 200
            time.sleep(0.1)
        assert client.post("/generate", json=SHORT).status_code == 503
        if how == "move":
            (tmp_path / "elsewhere.db").rename(path)
            until_ready(client, 200)
            assert client.post("/generate", json=SHORT).status_code == 202
        server.signal()
        _, stderr = server.wait()
    assert stderr.count("nothing can be written") == 1, stderr
    assert "cannot be deleted" not in stderr


def test_an_idle_server_notices_it_too(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    with ServerProcess(*ARGS, "--results", str(path)) as server, httpx.Client(base_url=server.url) as client:
        path.unlink()
        assert until_ready(client, 503).json()["error"]["code"] == "store"


def take_away(path: Path, how: str) -> None:
    if how == "delete":
        path.unlink()
    elif how == "delete the log":
        path.with_name("results.db-wal").unlink()
    elif how == "move":
        path.rename(path.with_name("elsewhere.db"))
    elif how == "replace":
        path.with_name("new.db").write_bytes(path.read_bytes())
        path.with_name("new.db").rename(path)
    else:
        os.truncate(path, 0)
