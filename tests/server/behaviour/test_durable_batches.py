"""Batches on disk: a server that is killed twice answers every line once, as one would that was left alone."""

import contextlib
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from serving import ServerProcess

# More by hand: SPLITFUSE_TEST_LINES=500 SPLITFUSE_TEST_KILLS=20 pytest tests/server/behaviour/test_durable_batches.py
NUM_LINES = int(os.environ.get("SPLITFUSE_TEST_LINES", "40"))
NUM_KILLS = int(os.environ.get("SPLITFUSE_TEST_KILLS", "1"))
CRASH_AT = str(Path(__file__).parent.parent / "crash_at.py")
ARGS = ("--dtype", "float32")
OVER = ("completed", "failed", "expired", "cancelled")


def line(number: int) -> dict[str, Any]:
    prompts = ("Once upon a time", "The old man", "Tom had a ball. One day")
    body = {"prompt": prompts[number % 3], "max_tokens": 5 + number % 20, "temperature": 0.8, "seed": number}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}


LINES = [line(number) for number in range(NUM_LINES)]


def contents(lines: Sequence[dict[str, Any]] = LINES) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=20, timeout=60)


def begin(client: openai.OpenAI, lines: Sequence[dict[str, Any]] = LINES) -> Any:
    file = client.files.create(file=("lines.jsonl", contents(lines)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")


def ended(client: openai.OpenAI, batch_id: str, *, enough: int = 2**31) -> Any:
    """The batch when it is over, or has so many answers."""
    while True:
        batch = client.batches.retrieve(batch_id)
        assert batch.request_counts is not None
        if batch.status in OVER or batch.request_counts.completed >= enough:
            return batch
        time.sleep(0.02)  # it can only be polled


def texts(client: openai.OpenAI, batch: Any) -> list[tuple[str, str]]:
    lines = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
    return [(each["custom_id"], each["response"]["body"]["choices"][0]["text"]) for each in lines]


@pytest.fixture(scope="module")
def expected() -> list[tuple[str, str]]:
    """The answers of a server that is left alone and keeps nothing."""
    with ServerProcess(*ARGS) as server, client_of(server) as client:
        batch = ended(client, begin(client).id)
        assert (batch.status, batch.request_counts.completed) == ("completed", NUM_LINES)
        answers = texts(client, batch)
        assert [custom_id for custom_id, _ in answers] == [f"line-{number}" for number in range(NUM_LINES)]
        return answers


def test_a_batch_survives_two_kills(expected: list[tuple[str, str]], tmp_path: Path) -> None:
    args = (*ARGS, "--results", str(tmp_path / "results.db"), "--max-batch-requests", "4")
    with ServerProcess(*args) as server, client_of(server) as client:
        batch = begin(client)
        ended(client, batch.id, enough=NUM_LINES // 4)
        server.process.kill()
    seen = []
    for share in (NUM_LINES // 2, NUM_LINES):
        with ServerProcess(*args) as server, client_of(server) as client:
            batch = ended(client, batch.id, enough=share)
            seen.append(batch.request_counts.completed)
            if share < NUM_LINES:
                server.process.kill()
            else:
                done = ended(client, batch.id)
                assert (done.status, done.request_counts.completed, done.error_file_id) == (
                    "completed",
                    NUM_LINES,
                    None,
                )
                assert texts(client, done) == expected
                assert client.files.content(done.input_file_id).content == contents()
                assert [each.id for each in client.batches.list()] == [batch.id]
    assert NUM_LINES // 4 <= seen[0] < NUM_LINES, "it was killed half-way"


@pytest.mark.parametrize("seed", range(NUM_KILLS))
def test_at_whatever_write_it_dies(expected: list[tuple[str, str]], tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    args = (*ARGS, "--results", str(tmp_path / "results.db"), "--max-batch-requests", "4")
    with ServerProcess(*args) as server, client_of(server) as client:
        batch = begin(client)
        server.process.kill()
    for number in (rng.randint(1, 10), rng.randint(1, 10)):
        program = (CRASH_AT, f"{rng.choice(['before', 'after'])}-batch", str(number))
        with contextlib.suppress(AssertionError), ServerProcess(*args, program=program) as server:
            server.process.wait(60)
    with ServerProcess(*args) as server, client_of(server) as client:
        done = ended(client, batch.id)
        assert done.status == "completed"
        assert texts(client, done) == expected


def test_a_line_that_kills_processes_is_given_up(tmp_path: Path) -> None:
    args = (*ARGS, "--results", str(tmp_path / "results.db"), "--max-batch-requests", "2")
    lines = [line(number) for number in range(4)]
    lines[2]["body"]["prompt"] = "deadly"
    over: list[Any] = []
    for _ in range(4):
        with (
            contextlib.suppress(AssertionError, openai.APIConnectionError),
            ServerProcess(*args, program=(CRASH_AT, "prompt", "deadly")) as server,
            client_of(server).with_options(max_retries=0) as client,
        ):
            found = client.batches.list().data or [begin(client, lines)]
            over.append(ended(client, found[0].id))
            text = client.files.content(over[-1].error_file_id).text
    assert len(over) == 1, "three processes died of it, in whatever they were asked"
    assert (over[0].status, over[0].request_counts.completed, over[0].request_counts.failed) == ("completed", 3, 1)
    (error,) = map(json.loads, text.splitlines())
    assert (error["custom_id"], error["response"]["body"]["error"]["code"]) == ("line-2", "interrupted")
