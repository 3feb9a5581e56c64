"""Receipts of stored answers: they are kept with the answer, and a process that finishes a job makes its receipt."""

from pathlib import Path
from typing import Any

import httpx
from kept_results import ARGS, PROMPT, Reader, until_draining, whole_result
from serving import ServerProcess, SlowSteps

FIELDS: dict[str, Any] = {"receipt": True, "prompt": PROMPT, "ignore_eos": True}
BODIES = [
    {**FIELDS, "max_tokens": 4, "n": 2, "seed": 3},  # ends in the first process
    {**FIELDS, "max_tokens": 60, "seed": 7, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
]


def verdict_of(client: httpx.Client, receipt: dict[str, Any]) -> tuple[bool, str | None]:
    verdict = client.post("/verify", json={"receipt": receipt}).json()
    return verdict["valid"], verdict["reason"]


def test_receipts_of_stored_and_of_resumed_answers_verify(tmp_path: Path) -> None:
    args = (*ARGS, "--results", str(tmp_path / "results.db"), "--drain-timeout", "0")
    steps = SlowSteps(tmp_path)
    with ServerProcess(*args, program=steps.program) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        ended, running = (client.post("/generate", json=body).json()["seq_id"] for body in BODIES)
        first = whole_result(client, ended)["receipt"]
        Reader(f"{server.url}/result/{running}/stream").until_begun()
        server.signal()
        until_draining(server)
        steps.off()
        assert server.wait()[0] == 0
    with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        assert whole_result(client, ended)["receipt"] == first
        resumed = whole_result(client, running)["receipt"]
        assert len(resumed["outputs"][0]["token_ids"]) == BODIES[1]["max_tokens"]
        server.process.kill()
    with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        assert [whole_result(client, seq_id)["receipt"] for seq_id in (ended, running)] == [first, resumed]
        assert [verdict_of(client, receipt) for receipt in (first, resumed)] == [(True, None)] * 2
        resumed["outputs"][0]["token_ids"][40] ^= 1
        assert "output 0, token 40" in str(verdict_of(client, resumed)[1])
