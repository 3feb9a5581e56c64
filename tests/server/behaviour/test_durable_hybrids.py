"""Results on disk of a model with recurrent layers: a killed server computes its states again, and ends as it would."""

import json
from pathlib import Path
from typing import Any

import httpx
from kept_results import Reader, comparable, whole_result
from serving import ServerProcess, SlowSteps
from tiny_models import save_model

DRAFTS = json.dumps({"method": "ngram", "num_speculative_tokens": 3, "adaptive": False})
PROMPT = list(range(20, 220))
BODIES: list[dict[str, Any]] = [
    {"prompt": PROMPT, "max_tokens": 120, "temperature": 0, "ignore_eos": True},
    {"prompt": PROMPT[:150] + [7] * 40, "max_tokens": 60, "seed": 7, "top_p": 0.9, "ignore_eos": True},
    {"prompt": PROMPT[:33], "max_tokens": 40, "n": 3, "seed": 3, "ignore_eos": True},
]


def test_killed_it_gives_what_it_would_have_given(tmp_path: Path) -> None:
    save_model("lfm2", tmp_path)
    args = ("--model", str(tmp_path), "--dtype", "float32", "--device", "cpu", "--speculative-config", DRAFTS)
    results = ("--results", str(tmp_path / "results.db"))
    with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        expected = [comparable(whole_result(client, seq_id)) for seq_id in submitted(client)]
    steps = SlowSteps(tmp_path)
    with ServerProcess(*args, *results, program=steps.program) as server:
        with httpx.Client(base_url=server.url, timeout=70) as client:
            seq_ids = submitted(client)
            reader = Reader(f"{server.url}/result/{seq_ids[0]}/stream")
            reader.until_begun()
        server.process.kill()
    assert all(event["event"] == "token" for event in reader.events()), "it was killed within an answer"
    with ServerProcess(*args, *results) as server, httpx.Client(base_url=server.url, timeout=70) as client:
        assert [comparable(whole_result(client, seq_id)) for seq_id in seq_ids] == expected


def submitted(client: httpx.Client) -> list[str]:
    return [client.post("/generate", json=body).json()["seq_id"] for body in BODIES]
