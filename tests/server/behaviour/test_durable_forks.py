"""Forks of results on disk: after a kill, kept answers are forked as before, and forks that ran go on."""

from pathlib import Path
from typing import Any

import httpx
from kept_results import ARGS, PROMPT, Reader, comparable, whole_result
from serving import ServerProcess, SlowSteps

PARENTS: list[dict[str, Any]] = [
    {"prompt": PROMPT, "max_tokens": 40, "temperature": 1.0, "ignore_eos": True, "logprobs": 1},
    {"prompt": PROMPT, "max_tokens": 40, "seed": 3, "n": 2, "structured_outputs": {"regex": "[a-z ]{30,90}"}},
]
CHANGES: list[dict[str, Any]] = [
    {"at": 9},
    {"at": 0},
    {"at": 12, "append_text": " and a zebra", "seed": 5, "max_tokens": 60, "receipt": True},
    {"at": 15, "temperature": 0, "presence_penalty": 1.0, "max_tokens": 60, "logprobs": 2},
]


def forked(client: httpx.Client, seq_ids: list[str]) -> list[str]:
    """Fork the last output of each answer in every way. Returns the forks' ids."""
    forks = []
    for number, seq_id in enumerate(seq_ids):
        for change in CHANGES:
            answer = client.post("/fork", json={"seq_id": seq_id, "output": number, **change})
            assert answer.status_code == 202, answer.text
            forks.append(answer.json()["seq_id"])
    return forks


def test_after_a_kill_answers_are_forked_and_forks_go_on(tmp_path: Path) -> None:
    args = (*ARGS, "--results", str(tmp_path / "results.db"))
    with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        parents = [client.post("/generate", json=body).json()["seq_id"] for body in PARENTS]
        whole = [whole_result(client, seq_id) for seq_id in parents]
        expected = [whole_result(client, seq_id) for seq_id in forked(client, parents)]
        scores = client.get(f"/result/{parents[0]}/tokens").json()
        server.process.kill()
    for number, parent in enumerate(whole):
        assert expected[4 * number]["token_ids"] == parent["outputs"][number]["token_ids"]
    steps = SlowSteps(tmp_path)
    with ServerProcess(*args, program=steps.program) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        running = forked(client, parents)
        body = {"seq_id": parents[0], **CHANGES[2], "stream": True, "durable": True}
        with client.stream("POST", "/fork", json=body) as begun:
            running.append(begun.headers["X-Seq-Id"])
        expected.append(expected[2])
        reader = Reader(f"{server.url}/result/{running[0]}/stream")
        reader.until_begun()
        server.process.kill()
    with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        given = [whole_result(client, seq_id) for seq_id in running]
        assert [tokens_and_ends(result) for result in given] == [tokens_and_ends(result) for result in expected]
        assert {result.get("attempt") for result in given} == {2}
        for fork in (expected[2], given[2]):
            assert client.post("/verify", json={"receipt": fork["receipt"]}).json()["valid"]
            assert fork["receipt"]["parent"]["seq_id"] == parents[0]
        assert client.get(f"/result/{parents[0]}/tokens").json() == scores
        for fork in given:  # a fork that ran in two processes is an answer like any other
            again = client.post("/fork", json={"seq_id": fork["seq_id"], "at": len(fork["token_ids"]) - 1}).json()
            assert tokens_and_ends(whole_result(client, again["seq_id"])) == tokens_and_ends(fork)
        server.process.kill()


def tokens_and_ends(result: dict[str, Any]) -> list[Any]:
    outputs = comparable(result)["outputs"]
    return [(output["token_ids"], output["text"], output["finish_reason"]) for output in outputs]
