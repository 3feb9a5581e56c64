"""Batches of several servers on one database: any answers for any batch, and one at a time runs it."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from batch_lines import ARGS, begin, client_of, contents, ended, line, lines_of, texts
from postgres_server import PostgresServer
from serving import ServerProcess, SlowSteps
from shared_cores import CpuWait

LEASE_S = 3.0
DEFAULT_LEASE_S = 15.0
NUM_LINES = 40
LINES = [line(number) for number in range(NUM_LINES)]
SHARED = (*ARGS, "--results-lease", str(LEASE_S), "--max-batch-requests", "4")
MANY = [line(number) for number in range(2000)]  # more than a test has time for


class Pair:
    """Two servers, and a client of each. The first one's steps can be slow."""

    def __init__(self, database: str, *args: str, steps: SlowSteps) -> None:
        shared = (*SHARED, "--results", database, *args)
        self.first, self.second = ServerProcess(*shared, program=steps.program), ServerProcess(*shared)

    def __enter__(self) -> "Pair":
        self.clients = [client_of(server.__enter__()) for server in (self.first, self.second)]
        return self

    def __exit__(self, *exc_info: object) -> None:
        for client in self.clients:
            client.close()
        self.first.process.send_signal(signal.SIGCONT)
        self.first.__exit__()
        self.second.__exit__()


@pytest.fixture(scope="module")
def expected() -> list[tuple[str, str]]:
    """Return the answers of a server that is left alone and keeps nothing."""
    with ServerProcess(*ARGS) as server, client_of(server) as client:
        return texts(client, ended(client, begin(client, LINES).id))


def assert_as_expected(client: openai.OpenAI, batch: Any, expected: list[tuple[str, str]]) -> None:
    assert (batch.status, batch.request_counts.completed, batch.error_file_id) == ("completed", NUM_LINES, None)
    assert texts(client, batch) == expected, "each line once, in order"


def test_a_batch_of_a_killed_server_goes_on_in_the_other(
    postgres: PostgresServer, slow: SlowSteps, expected: list[tuple[str, str]]
) -> None:
    with Pair(postgres.database(), steps=slow) as pair, CpuWait() as wait:
        one, other = pair.clients
        batch = begin(one, LINES)
        seen = ended(other, batch.id, enough=NUM_LINES // 4)
        pair.first.process.kill()
        killed_at = time.monotonic()
        before = other.batches.retrieve(batch.id).request_counts
        assert before is not None
        ended(other, batch.id, enough=before.completed + 1)
        took = time.monotonic() - killed_at
        print(f"the batch goes on {took:.1f} s after the death of its server")
        assert took < DEFAULT_LEASE_S * wait.factor, "the lease of the command line is in force"
        assert NUM_LINES // 4 <= seen.request_counts.completed < NUM_LINES, "it was killed half-way"
        assert_as_expected(other, ended(other, batch.id), expected)
        assert other.files.content(batch.input_file_id).content == contents(LINES)


@pytest.mark.thorough
def test_a_stopped_server_that_goes_on_writes_nothing(
    postgres: PostgresServer, slow: SlowSteps, expected: list[tuple[str, str]]
) -> None:
    with Pair(postgres.database(), steps=slow) as pair:
        one, other = pair.clients
        batch = begin(one, LINES)
        ended(other, batch.id, enough=NUM_LINES // 4)
        pair.first.signal(signal.SIGSTOP)
        slow.off()
        time.sleep(LEASE_S)
        done = ended(other, batch.id)
        assert_as_expected(other, done, expected)
        answers = other.files.content(done.output_file_id).content
        pair.first.signal(signal.SIGCONT)
        time.sleep(2)  # its writes, if it sent any
        for client in pair.clients:
            assert client.batches.retrieve(batch.id) == done
            assert client.files.content(done.output_file_id).content == answers
        assert_as_expected(other, ended(other, begin(one, LINES).id), expected)


@pytest.mark.thorough
def test_what_a_server_leaves_that_stops_goes_on_at_once(
    postgres: PostgresServer, slow: SlowSteps, expected: list[tuple[str, str]]
) -> None:
    with Pair(postgres.database(), "--results-lease", "60", steps=slow) as pair:
        one, other = pair.clients
        batch = begin(one, LINES)
        ended(other, batch.id, enough=NUM_LINES // 4)
        pair.first.signal()
        assert_as_expected(other, ended(other, batch.id), expected)
        assert pair.first.wait()[0] == 0


@pytest.fixture(scope="module")
def pair(postgres: PostgresServer, steps: SlowSteps) -> Iterator[Pair]:
    """Two servers which nothing befalls."""
    with Pair(postgres.database(), steps=steps) as pair:
        yield pair


def test_any_server_answers_for_any_file_and_batch(pair: Pair, expected: list[tuple[str, str]]) -> None:
    one, other = pair.clients
    batches = [begin(client, LINES) for client in (one, other, one)]
    for client in (one, other):
        assert [found.id for found in client.batches.list()] == [batch.id for batch in reversed(batches)]
        assert {found.id for found in client.files.list()} >= {batch.input_file_id for batch in batches}
    for batch, client in zip(batches, (other, one, other), strict=True):
        assert_as_expected(client, ended(client, batch.id), expected)
    file = one.files.create(file=("a.jsonl", contents(LINES)), purpose="batch")
    crossed = other.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    assert_as_expected(one, ended(one, crossed.id), expected)
    assert other.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        one.files.retrieve(file.id)


def test_a_batch_is_cancelled_through_the_other_server(pair: Pair) -> None:
    one, other = pair.clients
    batch = begin(one, MANY)
    ended(other, batch.id, enough=3)
    with pytest.raises(openai.BadRequestError, match="reads this file"):
        other.files.delete(batch.input_file_id)
    assert other.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    for client in (one, other):
        done = ended(client, batch.id)
        counts = done.request_counts
        assert (done.status, counts.completed + counts.failed) == ("cancelled", len(MANY))
        with pytest.raises(openai.BadRequestError, match="only one that is not over"):
            client.batches.cancel(batch.id)
    answered = [row["custom_id"] for name in (done.output_file_id, done.error_file_id) for row in lines_of(one, name)]
    assert sorted(answered) == sorted(request["custom_id"] for request in MANY)


def test_equal_keys_at_two_servers_are_one_batch(pair: Pair) -> None:
    one, other = pair.clients
    file = one.files.create(file=("a.jsonl", contents(LINES)), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"}

    def create(url: str) -> str:
        answer = httpx.post(f"{url}/v1/batches", json=body, headers={"Idempotency-Key": file.id}, timeout=60)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    urls = [pair.first.url, pair.second.url] * 8
    with ThreadPoolExecutor(len(urls)) as threads:
        batch_ids = set(threads.map(create, urls))
    assert len(batch_ids) == 1
    assert sum(batch.input_file_id == file.id for batch in other.batches.list()) == 1
    reused = httpx.post(
        f"{pair.second.url}/v1/batches", json={**body, "metadata": {}}, headers={"Idempotency-Key": file.id}
    )
    assert reused.json()["error"]["code"] == "idempotency_key_reused"


def test_quotas_are_those_of_all_servers_together(postgres: PostgresServer, steps: SlowSteps) -> None:
    most = len(contents(LINES)) * 3 // 2
    with Pair(postgres.database(), "--max-total-file-bytes", str(most), steps=steps) as pair:
        one, other = (client.with_options(max_retries=0) for client in pair.clients)
        file = one.files.create(file=("a.jsonl", contents(LINES)), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="max-total-file-bytes"):
            other.files.create(file=("b.jsonl", contents(LINES)), purpose="batch")
        other.files.delete(file.id)
        assert other.files.create(file=("b.jsonl", contents(LINES)), purpose="batch").bytes


def test_while_the_database_is_away_a_batch_waits(
    postgres: PostgresServer, pair: Pair, expected: list[tuple[str, str]]
) -> None:
    one, other = pair.clients
    batch = begin(one, LINES)
    ended(other, batch.id, enough=3)
    postgres.stop()
    assert httpx.get(f"{pair.second.url}/v1/batches/{batch.id}").json()["error"]["code"] == "store_unavailable"
    postgres.start()
    assert_as_expected(other, ended(other, batch.id), expected)
