"""The wall clock is set an hour back and forth, while servers run and between them: nothing is lost before its time."""

import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from kept_results import ARGS, PROMPT, Reader, comparable
from serving import ServerProcess, SlowSteps

CLOCK_FROM = str(Path(__file__).parent.parent / "clock_from.py")
HOUR = 3600
LONG = {"prompt": PROMPT, "max_tokens": 300, "temperature": 0, "ignore_eos": True}
SHORT = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0}


class Clock:
    """Wall clock of servers, which can be set while they run; their monotonic clock stays right."""

    def __init__(self, path: Path, steps: SlowSteps) -> None:
        self._path, self._steps = path, steps
        self.set(0)

    def server(self, *args: str) -> ServerProcess:
        """Start a server that reads this clock, in a fresh process: modules keep the functions that they import."""
        return ServerProcess(*args, program=(CLOCK_FROM, str(self._path), *self._steps.program), is_forked=False)

    def set(self, seconds: int) -> None:
        """Set the clock `seconds` ahead of the true time."""
        new = self._path.with_suffix(".new")
        new.write_text(f"{seconds}")
        os.replace(new, self._path)


def submit(client: httpx.Client, body: dict[str, Any]) -> str:
    answer = client.post("/generate", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["seq_id"])


def result(client: httpx.Client, seq_id: str) -> dict[str, Any]:
    answer = client.get(f"/result/{seq_id}?wait=60")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def until_told(server: ServerProcess, seq_id: str) -> Reader:
    """Wait until the stream of a result has begun."""
    reader = Reader(f"{server.url}/result/{seq_id}/stream")
    while not reader.text:
        time.sleep(0.01)
    return reader


@pytest.mark.thorough
def test_an_hour_back_and_forth_ends_nothing_early(tmp_path: Path) -> None:
    steps = SlowSteps(tmp_path)
    clock = Clock(tmp_path / "clock", steps)
    args = (*ARGS, "--results", str(tmp_path / "results.db"), "--result-ttl", str(2 * HOUR))
    with clock.server(*args) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        kept, brief = submit(client, SHORT), submit(client, {**SHORT, "ttl_s": 600})
        results = {seq_id: result(client, seq_id) for seq_id in (kept, brief)}
        running = submit(client, {**LONG, "timeout_ms": 60_000})
        until_told(server, running)
        clock.set(-HOUR)
        early = submit(client, {**LONG, "timeout_ms": 60_000})
        until_told(server, early)
        clock.set(HOUR)
        steps.off()
        results |= {seq_id: result(client, seq_id) for seq_id in (running, early)}
        assert {found["finish_reason"] for found in results.values()} == {"length"}, "no deadline has passed"
        assert comparable(results[running]) == comparable(results[early])
        assert [comparable(result(client, seq_id)) for seq_id in results] == [*map(comparable, results.values())]
        listed = client.get("/results").json()["data"]
        assert [found["seq_id"] for found in listed][-1] == early, "the one that came first by the clock"
        server.process.kill()
    del results[brief]
    clock.set(-HOUR)
    with clock.server(*args) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        assert [comparable(result(client, seq_id)) for seq_id in results] == [*map(comparable, results.values())]
        steps.on()
        bound, free = submit(client, {**LONG, "timeout_ms": 30 * 60_000}), submit(client, LONG)
        readers = [until_told(server, seq_id) for seq_id in (bound, free)]
        server.process.kill()
    told = [[token for event in reader.events() for token in event["data"]["token_ids"]] for reader in readers]
    clock.set(HOUR)
    steps.off()
    with clock.server(*args) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        ended = result(client, bound)
        assert (ended["status"], ended["finish_reason"]) == ("completed", "timeout"), "by the clock its time is over"
        assert ended["token_ids"][: len(told[0])] == told[0], "it ends with what it had"
        assert comparable(result(client, free)) == comparable(results[running])
        assert [comparable(result(client, seq_id)) for seq_id in results] == [*map(comparable, results.values())]
        assert client.get(f"/result/{brief}").status_code == 404
