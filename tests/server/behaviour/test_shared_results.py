"""Several servers on one database: any answers for any job, and what one leaves another goes on with."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from kept_results import ARGS, PROMPT, Reader, comparable, whole_result
from postgres_server import PostgresServer
from serving import ServerProcess, SlowSteps
from shared_cores import CpuWait

LEASE_S = 3.0
DEFAULT_LEASE_S = 15.0
AWAY_S = float(os.environ.get("SPLITFUSE_TEST_AWAY_S", "2"))
NUM_STREAMS = int(os.environ.get("SPLITFUSE_TEST_STREAMS", "6"))
MINE = {"Authorization": "Bearer mine"}
LONG = {"prompt": PROMPT, "max_tokens": 600, "temperature": 0, "ignore_eos": True}


class Pair:
    """Two servers. The first one's steps can be slow."""

    def __init__(self, database: str, *args: str, steps: SlowSteps) -> None:
        shared = (*ARGS, "--results", database, "--results-lease", str(LEASE_S), *args)
        self.steps = steps
        self.first, self.second = ServerProcess(*shared, program=steps.program), ServerProcess(*shared)

    def __enter__(self) -> "Pair":
        self.first.__enter__()
        self.second.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.first.process.send_signal(signal.SIGCONT)
        self.first.__exit__()
        self.second.__exit__()


def body(number: int) -> dict[str, Any]:
    return {**LONG, "temperature": 0.0 if number % 2 else 0.8, "seed": number}


def submit(url: str, number: int, **headers: str) -> str:
    answer = httpx.post(f"{url}/generate", json=body(number), headers=headers, timeout=60)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["seq_id"])


def result(url: str, seq_id: str) -> dict[str, Any]:
    with httpx.Client(base_url=url, timeout=70) as client:
        return whole_result(client, seq_id)


class StitchedReader(threading.Thread):
    """Reader of a stream that resumes at the next server wherever the stream breaks off."""

    def __init__(self, urls: list[str], seq_id: str) -> None:
        super().__init__(daemon=True)
        self.events: list[dict[str, Any]] = []
        self.began = threading.Event()
        self.came_back_at: float | None = None  # had the first event from another server
        self._urls = urls
        self._seq_id = seq_id
        self.start()

    def run(self) -> None:
        for url in self._urls + [self._urls[-1]] * 200:
            reader = Reader(f"{url}/result/{self._seq_id}/stream", after=len(self.events) - 1)
            while not reader.text and reader.is_alive():
                reader.join(0.05)
            if reader.text and self.events:
                self.came_back_at = self.came_back_at or time.monotonic()
            self.began.set()
            self.events += reader.events()
            if self.events and self.events[-1]["event"] != "token":
                return
            time.sleep(0.1)


@pytest.fixture(scope="module")
def expected() -> Iterator[list[dict[str, Any]]]:
    """Yield the results of a server that is left alone."""
    with ServerProcess(*ARGS) as server:
        seq_ids = [submit(server.url, number) for number in range(NUM_STREAMS)]
        yield [comparable(result(server.url, seq_id)) for seq_id in seq_ids]


def test_what_a_killed_server_ran_goes_on_in_the_other(
    postgres: PostgresServer, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    with Pair(postgres.database(), steps=SlowSteps(tmp_path)) as pair, CpuWait() as wait:
        urls = [pair.first.url, pair.second.url]
        seq_ids = [submit(urls[0], number) for number in range(NUM_STREAMS)]
        readers = [StitchedReader(urls, seq_id) for seq_id in seq_ids]
        through_the_other = StitchedReader(urls[1:], seq_ids[0])
        for reader in [*readers, through_the_other]:
            assert reader.began.wait(240)
        pair.first.process.kill()
        killed_at = time.monotonic()
        given = [result(urls[1], seq_id) for seq_id in seq_ids]
        assert [comparable(answer) for answer in given] == expected
        attempts = [answer.get("attempt", 1) for answer in given]
        assert attempts == [2] * NUM_STREAMS, "killed in the middle, and ran once more"
        for reader, answer in zip([*readers, through_the_other], [*given, given[0]], strict=True):
            reader.join(240)
            assert [int(event["id"]) for event in reader.events] == list(range(len(reader.events)))
            token_ids = [token_id for event in reader.events[:-1] for token_id in event["data"]["token_ids"]]
            assert (token_ids, reader.events[-1]["data"]) == (answer["token_ids"], answer)
        took = max(reader.came_back_at or 0.0 for reader in readers) - killed_at
        print(f"all go on {took:.1f} s after the death of their server")
        assert took < DEFAULT_LEASE_S * wait.factor, "the lease of the command line is in force"


def test_a_stopped_server_that_goes_on_writes_and_tells_nothing(
    postgres: PostgresServer, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    with Pair(postgres.database(), steps=SlowSteps(tmp_path)) as pair:
        seq_ids = [submit(pair.first.url, number) for number in range(NUM_STREAMS)]
        readers = [Reader(f"{pair.first.url}/result/{seq_id}/stream") for seq_id in seq_ids]
        forwarded = Reader(f"{pair.second.url}/result/{seq_ids[0]}/stream")
        for reader in [*readers, forwarded]:
            reader.until_begun()
        pair.first.signal(signal.SIGSTOP)
        pair.steps.off()  # goes on at full speed
        given = [result(pair.second.url, seq_id) for seq_id in seq_ids]
        assert [comparable(answer) for answer in given] == expected
        whole = Reader(f"{pair.second.url}/result/{seq_ids[0]}/stream").events()
        assert forwarded.events() == whole[: len(forwarded.events())], "it broke off when the lease had run out"
        pair.first.signal(signal.SIGCONT)
        for reader, answer in zip(readers, given, strict=True):
            told = reader.events()
            assert {event["event"] for event in told} == {"token"}, "broken off, without an end"
            token_ids = [token_id for event in told for token_id in event["data"]["token_ids"]]
            assert token_ids == answer["token_ids"][: len(token_ids)]
            assert len(token_ids) < len(answer["token_ids"])
        for url in (pair.first.url, pair.second.url):
            assert [result(url, seq_id) for seq_id in seq_ids] == given
        again = submit(pair.first.url, 1)
        assert comparable(result(pair.second.url, again)) == expected[1], "it works on, as another holder"


@pytest.mark.thorough
def test_what_sigterm_cuts_short_goes_on_at_once(
    postgres: PostgresServer, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    args = ("--drain-timeout", "0", "--results-lease", "60")
    with Pair(postgres.database(), *args, steps=SlowSteps(tmp_path)) as pair:
        seq_ids = [submit(pair.first.url, number) for number in range(4)]
        pair.first.signal()
        given = [result(pair.second.url, seq_id) for seq_id in seq_ids]
        assert [comparable(answer) for answer in given] == expected[:4]
        assert pair.first.wait()[0] == 0


@pytest.fixture(scope="module")
def pair(postgres: PostgresServer, steps: SlowSteps) -> Iterator[Pair]:
    """Two servers with two keys, which nothing befalls."""
    with Pair(postgres.database(), "--api-key", "mine", "--api-key", "other", steps=steps) as pair:
        yield pair


@pytest.mark.usefixtures("slow")
def test_any_server_answers_and_only_the_owner(pair: Pair) -> None:
    mine, other = MINE, {"Authorization": "Bearer other"}
    seq_id = submit(pair.first.url, 0, **mine, **{"Idempotency-Key": "k"})
    with httpx.Client(base_url=pair.second.url, timeout=60) as client:
        running = client.get(f"/result/{seq_id}", headers=mine).json()
        assert running["status"] in ("queued", "running"), "or this proves nothing"
        for method, path in (("GET", ""), ("GET", "/stream"), ("DELETE", "")):
            answers = [client.request(method, f"/result/{name}{path}", headers=other) for name in (seq_id, "x" * 32)]
            assert [answer.status_code for answer in answers] == [404, 404]
            assert answers[0].json() == answers[1].json()
        again = client.post("/generate", json=body(0), headers={**mine, "Idempotency-Key": "k"})
        assert (again.json()["seq_id"], again.headers["idempotent-replayed"]) == (seq_id, "true")
        foreign = client.post("/generate", json=body(0), headers={**other, "Idempotency-Key": "k"})
        assert foreign.json()["seq_id"] != seq_id
        guarded = client.get(f"/result/{seq_id}", headers={**mine, "X-Splitfuse-Forwarded": "1"})
        assert (guarded.status_code, guarded.json()["error"]["code"]) == (503, "resuming")
        assert client.delete(f"/result/{seq_id}", headers=mine).json()["status"] == "cancelled"
        assert client.get(f"/result/{seq_id}", headers=mine).status_code == 404
    pair.steps.off()
    ended = submit(pair.first.url, 1, **mine)
    for url in (pair.first.url, pair.second.url):
        with httpx.Client(base_url=url, headers=mine, timeout=70) as client:
            assert whole_result(client, ended)["status"] == "completed"
    assert httpx.delete(f"{pair.second.url}/result/{ended}", headers=mine).status_code == 200
    assert httpx.get(f"{pair.first.url}/result/{ended}", headers=mine).status_code == 404, "gone from all"


def test_equal_keys_at_two_servers_are_one_job(pair: Pair) -> None:
    urls = [pair.first.url, pair.second.url] * 8
    with ThreadPoolExecutor(len(urls)) as threads:
        seq_ids = set(threads.map(lambda url: submit(url, 3, **MINE, **{"Idempotency-Key": "k2"}), urls))
    assert len(seq_ids) == 1


def test_a_response_follows_one_that_runs_elsewhere(pair: Pair) -> None:
    running = {"input": "a", "background": True, "max_output_tokens": 200}
    previous = httpx.post(f"{pair.first.url}/v1/responses", json=running, headers=MINE, timeout=60).json()
    following = {"input": "b", "previous_response_id": previous["id"], "max_output_tokens": 5}
    with httpx.Client(base_url=pair.second.url, headers=MINE, timeout=60) as client:
        while client.get(f"/v1/responses/{previous['id']}").json()["status"] in ("queued", "in_progress"):
            pass
        answer = client.post("/v1/responses", json=following)
    assert answer.json()["status"] in ("completed", "incomplete"), answer.text


@pytest.mark.usefixtures("slow")
def test_while_the_database_is_away_nothing_is_told_and_then_it_goes_on(
    postgres: PostgresServer, pair: Pair, expected: list[dict[str, Any]]
) -> None:
    seq_id = submit(pair.first.url, 1, **MINE)
    readers = [Reader(f"{server.url}/result/{seq_id}/stream", **MINE) for server in (pair.first, pair.second)]
    for reader in readers:
        reader.until_begun()
    postgres.stop()
    pair.steps.off()
    with httpx.Client(base_url=pair.first.url, headers=MINE, timeout=60) as client:
        while client.post("/generate", json=LONG).status_code != 503:
            pass
        told = [len(reader.text) for reader in readers]
        assert client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 20}).status_code == 200
        assert [len(reader.text) for reader in readers] == told
    postgres.start()
    for reader in readers:
        events = reader.events()
        assert [int(event["id"]) for event in events] == list(range(len(events)))
        assert comparable(events[-1]["data"]) == expected[1]


def test_while_the_database_is_away_a_server_is_alive_and_not_ready(postgres: PostgresServer, pair: Pair) -> None:
    codes = set[int]()
    with httpx.Client(base_url=pair.first.url, timeout=60) as client:
        postgres.stop()
        until(lambda: client.get("/ready").status_code == 503)
        end = time.monotonic() + AWAY_S
        while time.monotonic() < end:
            codes.add(client.get("/health").status_code)
            refusal = client.get("/ready")
            assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "store")
            time.sleep(0.2)  # of a probe: an event that does not come cannot be awaited
        postgres.start()
        until(lambda: client.get("/ready").status_code == 200)
    assert codes == {200}
    submit(pair.first.url, 1, **MINE)


def until(is_true: Callable[[], bool]) -> None:
    """Wait for what comes by itself; the test's own time limit ends it."""
    while not is_true():
        time.sleep(0.05)
