"""Results on disk: a server that dies anywhere and is started again gives what one would have given that did not."""

import contextlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from kept_results import ARGS, PROMPT, Reader, comparable, until_draining, whole_result
from serving import ServerProcess, SlowSteps, one_line, parse_events, run_cli

# More by hand: SPLITFUSE_TEST_KILLS=100 pytest tests/server/behaviour/test_durable_results.py
NUM_KILLS = int(os.environ.get("SPLITFUSE_TEST_KILLS", "1"))
CRASH_AT = str(Path(__file__).parent.parent / "crash_at.py")
NEWER = str(Path(__file__).parent.parent / "newer_version.py")
OBJECT = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
BODIES: list[dict[str, Any]] = [
    {"prompt": PROMPT, "max_tokens": 120, "temperature": 0, "ignore_eos": True},
    {"prompt": PROMPT, "max_tokens": 60, "seed": 7, "top_p": 0.9, "ignore_eos": True},
    {"prompt": "The old man", "max_tokens": 60},
    {"prompt": PROMPT, "max_tokens": 40, "n": 4, "seed": 3, "logprobs": 2, "prompt_logprobs": 1},
    {"prompt": PROMPT, "max_tokens": 60, "seed": 1, "structured_outputs": {"json": {"type": "array", "items": OBJECT}}},
    {"prompt": PROMPT, "max_tokens": 80, "seed": 2, "stop": ["day", "the"], "min_tokens": 20},
    {"prompt": PROMPT, "max_tokens": 40, "repetition_penalty": 1.3, "presence_penalty": 0.5, "seed": 9},
    {"prompt": PROMPT, "max_tokens": 40, "seed": 4, "bad_words": ["the", "little"]},
]


def submit_all(url: str) -> list[str]:
    """Return the ids of jobs that were accepted before the server died."""
    seq_ids = []
    with contextlib.suppress(httpx.HTTPError), httpx.Client(base_url=url, timeout=60) as client:
        for body in BODIES:
            answer = client.post("/generate", json=body)
            assert answer.status_code == 202, answer.text
            seq_ids.append(answer.json()["seq_id"])
    return seq_ids


def results_of(url: str, seq_ids: list[str]) -> list[dict[str, Any]]:
    with httpx.Client(base_url=url, timeout=70) as client:
        return [whole_result(client, seq_id) for seq_id in seq_ids]


@pytest.fixture(scope="module")
def expected() -> Iterator[list[dict[str, Any]]]:
    """Yield the results of a server that is left alone and keeps nothing."""
    with ServerProcess(*ARGS) as server:
        results = results_of(server.url, submit_all(server.url))
        assert [result["status"] for result in results] == ["completed"] * len(BODIES)
        yield list(map(comparable, results))


@pytest.mark.parametrize(
    "next_program",
    [pytest.param(("-m", "splitfuse.server"), marks=pytest.mark.thorough), (NEWER,)],
    ids=["restart", "upgrade"],
)
@pytest.mark.parametrize("seed", range(NUM_KILLS))
def test_killed_at_any_commit_it_gives_what_it_would_have_given(
    expected: list[dict[str, Any]], tmp_path: Path, seed: int, next_program: tuple[str, ...]
) -> None:
    rng = random.Random(seed)
    results = ("--results", str(tmp_path / "results.db"), "--results-sync", rng.choice(["full", "normal"]))
    drafts = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}') if seed % 2 else ()
    seq_ids: list[str] = []
    told: list[dict[str, Any]] = []
    for _ in range(1 + (rng.random() < 0.5)):
        program = (CRASH_AT, rng.choice(["before", "after"]), str(rng.randint(2, 60)))
        with contextlib.suppress(AssertionError), ServerProcess(*ARGS, *results, *drafts, program=program) as server:
            seq_ids = seq_ids or submit_all(server.url)
            if seq_ids:
                reader = Reader(f"{server.url}/result/{seq_ids[0]}/stream", after=len(told) - 1)
                told += reader.events()
                server.process.kill()  # a slow disk takes more at once: then it ends before its commit of that number
    with ServerProcess(*ARGS, *results, *drafts, program=next_program) as server:
        given = results_of(server.url, seq_ids)
        assert [comparable(result) for result in given] == expected[: len(seq_ids)]
        if seq_ids:
            rest = Reader(f"{server.url}/result/{seq_ids[0]}/stream", after=len(told) - 1).events()
            token_events = [event for event in told + rest if event["event"] == "token"]
            assert [int(event["id"]) for event in token_events] == list(range(len(token_events)))
            token_ids = [token_id for event in token_events for token_id in event["data"]["token_ids"]]
            assert token_ids == expected[0]["token_ids"]
            assert (told + rest)[-1]["data"] == given[0]
        server.signal()
        assert server.wait()[0] == 0
    with ServerProcess(*ARGS, *results, program=next_program) as server:
        assert results_of(server.url, seq_ids) == given, "finished results stay as they are"
        is_newer = httpx.get(f"{server.url}/version").json()["version"] == "99.0"
    if is_newer:
        one_line(run_cli("serve", "demo", "--port", "0", *results), "a later version of splitfuse made it (format")


def test_a_second_server_on_the_file_exits_with_one_line(tmp_path: Path) -> None:
    path = str(tmp_path / "results.db")
    with ServerProcess(*ARGS, "--results", path):
        second = run_cli("serve", "--port", "0", "--results", path)
    assert second.returncode == 2
    assert "another process uses this file" in second.stderr
    assert "Traceback" not in second.stderr


def test_what_sigterm_cuts_short_the_next_process_finishes(expected: list[dict[str, Any]], tmp_path: Path) -> None:
    args = (*ARGS, "--results", str(tmp_path / "results.db"), "--drain-timeout", "0")
    steps = SlowSteps(tmp_path)
    with ServerProcess(*args, program=steps.program) as server:
        seq_ids = submit_all(server.url)
        reader = Reader(f"{server.url}/result/{seq_ids[0]}/stream")
        reader.until_begun()
        server.signal()
        until_draining(server)
        steps.off()
        assert server.wait()[0] == 0
    told = reader.events()
    assert all(event["event"] == "token" for event in told), "no end is told, for it has not ended"
    with ServerProcess(*args) as server:
        given = results_of(server.url, seq_ids)
        assert [comparable(result) for result in given] == expected
        rest = Reader(f"{server.url}/result/{seq_ids[0]}/stream", after=len(told) - 1).events()
        assert [int(event["id"]) for event in told + rest] == list(range(len(told + rest)))
        assert httpx.delete(f"{server.url}/result/{seq_ids[1]}").json()["deleted"]
        server.process.kill()
    with ServerProcess(*args) as server:
        answers = [httpx.get(f"{server.url}/result/{seq_id}") for seq_id in seq_ids[:2]]
        assert [answer.status_code for answer in answers] == [200, 404]
        assert json.loads(answers[0].text) == given[0]
        listed = httpx.get(f"{server.url}/results?limit=100").json()["data"]
        assert [row["seq_id"] for row in listed] == [seq_id for seq_id in reversed(seq_ids) if seq_id != seq_ids[1]]
        assert httpx.delete(f"{server.url}/results").json() == {"deleted": len(seq_ids) - 1}
        server.process.kill()
    with ServerProcess(*args) as server:
        assert httpx.get(f"{server.url}/results").json()["data"] == []


def test_what_a_dead_engine_leaves_the_next_process_finishes(expected: list[dict[str, Any]], tmp_path: Path) -> None:
    args = (*ARGS, "--results", str(tmp_path / "results.db"))
    steps = SlowSteps(tmp_path)
    with ServerProcess(*args, program=(*steps.program, CRASH_AT, "engine", "7")) as server:
        seq_ids = submit_all(server.url)
        readers = [Reader(f"{server.url}/result/{seq_id}/stream") for seq_id in seq_ids]
        readers[0].until_begun()
        stream = {"prompt": [7, 20], "max_tokens": 8, "ignore_eos": True, "stream": True}
        events = parse_events(httpx.post(f"{server.url}/generate", json=stream, timeout=60).text)
        assert [event["event"] for event in events] == ["token"] * 3 + ["error"], "nobody goes on with it"
        assert server.wait()[0] == 1
    told = [reader.events() for reader in readers]
    assert any(events and events[-1]["event"] == "token" for events in told)
    assert not [event for events in told for event in events if event["event"] == "error"]
    with ServerProcess(*args) as server:
        assert [comparable(result) for result in results_of(server.url, seq_ids)] == expected
        for seq_id, events in zip(seq_ids, told, strict=True):
            last = int(events[-1]["id"]) if events else -1
            rest = Reader(f"{server.url}/result/{seq_id}/stream", after=last).events()
            ids = [int(event["id"]) for event in events + rest if "id" in event]
            assert ids == list(range(len(ids)))


def test_with_another_dtype_unfinished_jobs_fail_and_say_why(tmp_path: Path) -> None:
    results = ("--results", str(tmp_path / "results.db"))
    with ServerProcess("--dtype", "float32", *results, program=SlowSteps(tmp_path).program) as server:
        seq_ids = submit_all(server.url)
        reader = Reader(f"{server.url}/result/{seq_ids[0]}/stream")
        reader.until_begun()
        server.process.kill()
    with ServerProcess("--dtype", "bfloat16", *results) as server:
        given = results_of(server.url, seq_ids)
        statuses = {result["status"] for result in given}
        assert statuses <= {"completed", "failed"}
        assert "failed" in statuses
        assert given[0]["status"] == "failed", "it had told something"
        for result in given:
            error = result["error"]
            assert error is None or (error["code"] == "interrupted" and "dtype" in error["message"])


def test_with_another_template_what_has_told_nothing_begins_afresh(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("An altogether different template. " * 5 + "{% for m in messages %}{{ m.content }}{% endfor %}")
    results = (*ARGS, "--results", str(tmp_path / "results.db"), "--max-num-seqs", "1")
    body = {"prompt": "The old man", "max_tokens": 20, "temperature": 0}
    asked = {"input": "Hello", "background": True, "max_output_tokens": 20, "temperature": 0}
    with (
        ServerProcess(*results, program=SlowSteps(tmp_path).program) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        running = client.post("/generate", json={**BODIES[0], "max_tokens": 400}).json()["seq_id"]
        reader = Reader(f"{server.url}/result/{running}/stream")
        waiting = client.post("/generate", json=body).json()["seq_id"]
        response = client.post("/v1/responses", json=asked).json()["id"]
        reader.until_begun()
        server.process.kill()
    with (
        ServerProcess(*results, "--chat-template", str(template)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        failed, done, _ = results_of(server.url, [running, waiting, response])
        assert (failed["status"], failed["error"]["code"]) == ("failed", "interrupted")
        assert "template" in failed["error"]["message"]
        told = [token for event in reader.events() for token in event["data"]["token_ids"]]
        assert failed["token_ids"][: len(told)] == told
        fresh = results_of(server.url, [client.post("/generate", json=body).json()["seq_id"]])[0]
        assert (comparable(done), done["attempt"]) == (comparable(fresh), 2)
        again = client.post("/v1/responses", json={**asked, "background": False}).json()
        answered = client.get(f"/v1/responses/{response}").json()
        assert answered["status"] in ("completed", "incomplete")
        assert answered["usage"]["input_tokens"] == again["usage"]["input_tokens"] > 20, "in the new template"
        assert answered["output"][0]["content"] == again["output"][0]["content"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "code"), [("token", 137), ("engine", 1)])
def test_a_job_that_kills_its_process_is_tried_alone_and_then_no_more(tmp_path: Path, kind: str, code: int) -> None:
    # Two at a time, so that the poison waits: a process that died of it before it was on disk would know nothing of it.
    args = (*ARGS, "--max-num-seqs", "2", "--results", str(tmp_path / "results.db"))
    poison = {"prompt": [7, 20], "max_tokens": 8}
    seq_ids: list[str] = []
    for number in range(3):
        with contextlib.suppress(AssertionError), ServerProcess(*args, program=(CRASH_AT, kind, "7")) as server:
            if number == 0:
                seq_ids = submit_all(server.url)[:3]
                with contextlib.suppress(httpx.HTTPError):
                    httpx.post(f"{server.url}/generate", json=poison, headers={"Idempotency-Key": "poison"}, timeout=60)
            assert server.process.wait(60) == code
    with ServerProcess(*args) as server:
        again = httpx.post(f"{server.url}/generate", json=poison, headers={"Idempotency-Key": "poison"}).json()
        result = httpx.get(f"{server.url}{again['result_url']}").json()
        assert (result["status"], result["error"]["code"], result["attempt"]) == ("failed", "interrupted", 4)
        assert [result["status"] for result in results_of(server.url, seq_ids)] == ["completed"] * 3
