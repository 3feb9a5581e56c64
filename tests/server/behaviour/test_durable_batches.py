"""Batches on disk: a server that is killed twice answers every line once, as one would that was left alone."""

import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any

import openai
import pytest
from batch_lines import ARGS, begin, client_of, contents, ended, line, texts
from serving import ServerProcess, SlowSteps

# More by hand: SPLITFUSE_TEST_LINES=500 SPLITFUSE_TEST_KILLS=20 pytest tests/server/behaviour/test_durable_batches.py
NUM_LINES = int(os.environ.get("SPLITFUSE_TEST_LINES", "40"))
NUM_KILLS = int(os.environ.get("SPLITFUSE_TEST_KILLS", "1"))
CRASH_AT = str(Path(__file__).parent.parent / "crash_at.py")
LINES = [line(number) for number in range(NUM_LINES)]


@pytest.fixture(scope="module")
def expected() -> list[tuple[str, str]]:
    """Return the answers of a server that is left alone and keeps nothing."""
    with ServerProcess(*ARGS) as server, client_of(server) as client:
        batch = ended(client, begin(client, LINES).id)
        assert (batch.status, batch.request_counts.completed) == ("completed", NUM_LINES)
        answers = texts(client, batch)
        assert [custom_id for custom_id, _ in answers] == [f"line-{number}" for number in range(NUM_LINES)]
        return answers


def test_a_batch_survives_two_kills(slow: SlowSteps, expected: list[tuple[str, str]], tmp_path: Path) -> None:
    args = (*ARGS, "--results", str(tmp_path / "results.db"), "--max-batch-requests", "4")
    with ServerProcess(*args, program=slow.program) as server, client_of(server) as client:
        batch = begin(client, LINES)
        ended(client, batch.id, enough=NUM_LINES // 4)
        server.process.kill()
    seen = []
    for share in (NUM_LINES // 2, NUM_LINES):
        with ServerProcess(*args, program=slow.program) as server, client_of(server) as client:
            batch = ended(client, batch.id, enough=share)
            seen.append(batch.request_counts.completed)
            slow.off()
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
                assert client.files.content(done.input_file_id).content == contents(LINES)
                assert [listed.id for listed in client.batches.list()] == [batch.id]
    assert NUM_LINES // 4 <= seen[0] < NUM_LINES, "it was killed half-way"


@pytest.mark.parametrize("seed", range(NUM_KILLS))
def test_at_whatever_write_it_dies(expected: list[tuple[str, str]], tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    args = (*ARGS, "--results", str(tmp_path / "results.db"), "--max-batch-requests", "4")
    with ServerProcess(*args) as server, client_of(server) as client:
        batch = begin(client, LINES)
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
