"""Encrypted results of a real server: killed and started again it goes on with the key, and not without."""

import base64
import contextlib
import json
import secrets
import sqlite3
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from kept_results import ARGS, PROMPT, Reader, comparable
from serving import ServerProcess, SlowSteps, is_one_line, run_cli

BODIES: list[dict[str, Any]] = [
    {"prompt": PROMPT, "max_tokens": 120, "temperature": 0, "ignore_eos": True},
    {"prompt": "The old man", "max_tokens": 60, "seed": 7, "n": 2, "logprobs": 1},
    {"prompt": f"{PROMPT} dog", "max_tokens": 20, "temperature": 0, "ignore_eos": True},
]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(base64.b64encode(secrets.token_bytes(32)).decode())
    return path


def submitted(url: str) -> list[str]:
    return [httpx.post(f"{url}/generate", json=body, timeout=60).json()["seq_id"] for body in BODIES]


def results_of(url: str, seq_ids: list[str]) -> list[dict[str, Any]]:
    with httpx.Client(base_url=url, timeout=70) as client:
        return [client.get(f"/result/{seq_id}?wait=60").json() for seq_id in seq_ids]


def bytes_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))


def test_killed_it_goes_on_with_the_key_and_nobody_reads_the_files(tmp_path: Path, key: Path) -> None:
    path = tmp_path / "results.db"
    with ServerProcess(*ARGS) as server:
        expected = [comparable(result) for result in results_of(server.url, submitted(server.url))]
    args = (*ARGS, "--results", str(path), "--results-key-file", str(key))
    steps = SlowSteps(tmp_path, after=60)
    with ServerProcess(*args, program=steps.program) as server:
        seq_ids = submitted(server.url)
        reader = Reader(f"{server.url}/result/{seq_ids[0]}/stream")
        results_of(server.url, seq_ids[2:])  # this one ends, the longest runs
        server.process.kill()
    told = reader.events()
    data = [bytes_of(path)]

    for given, reason in (((), "give its key"), (("--results-key-file", str(other_key(tmp_path))), "another key")):
        refused = run_cli("serve", "--port", "0", *ARGS, "--results", str(path), *given)
        assert refused.returncode == 2
        is_one_line(refused.stderr, "it is encrypted", reason)

    with ServerProcess(*args) as server:
        given_results = results_of(server.url, seq_ids)
        assert [comparable(result) for result in given_results] == expected
        assert given_results[0]["attempt"] == 2, "it was running"
        rest = Reader(f"{server.url}/result/{seq_ids[0]}/stream", after=len(told) - 1).events()
        assert [int(event["id"]) for event in told + rest] == list(range(len(told + rest)))
        assert (told + rest)[-1]["data"] == given_results[0]
        data.append(bytes_of(path))
        server.process.kill()
    data.append(bytes_of(path))
    texts = [body["prompt"] for body in BODIES]
    texts += [part for result in expected for output in result["outputs"] for part in pieces(output["text"])]
    texts += [json.dumps(result["token_ids"][:4], separators=(",", ":"))[1:-1] for result in expected]
    assert len(texts) > 20
    for text in texts:
        assert not any(text.encode() in content for content in data), text
    assert all(seq_ids[0].encode() in content for content in data), "ids are in the clear"

    with ServerProcess(*args) as server:
        sealed = key_of(path, seq_ids[0], data[-1])
        httpx.delete(f"{server.url}/result/{seq_ids[0]}").raise_for_status()
        deadline = time.monotonic() + 120
        while sealed in bytes_of(path) and time.monotonic() < deadline:
            time.sleep(0.2)  # a sweep empties the log
        assert sealed not in bytes_of(path)
        assert httpx.get(f"{server.url}/result/{seq_ids[0]}").status_code == 404
        assert results_of(server.url, seq_ids[1:]) == given_results[1:]
        server.signal()
        assert server.wait()[0] == 0
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(
            "UPDATE jobs SET result = substr(result, 1, 120) || 'AAAA' || substr(result, 125) WHERE seq_id = ?",
            [seq_ids[1]],
        )
        db.commit()
    with ServerProcess(*args) as server:
        damaged, whole = results_of(server.url, seq_ids[1:])
        assert (damaged["status"], damaged["error"]["code"]) == ("failed", "damaged")
        assert whole == given_results[2]
        assert httpx.get(f"{server.url}/health").status_code == 200


def pieces(text: str) -> list[str]:
    return [text[start : start + 12] for start in range(0, len(text) - 12, 12)]


def other_key(folder: Path) -> Path:
    path = folder / "another"
    path.touch(0o600)
    path.write_text(secrets.token_hex(32))
    return path


def key_of(path: Path, seq_id: str, data: bytes) -> bytes:
    """Return the sealed key of a job, which a copy of the files shows."""
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    Path(f"{copy}-wal").write_bytes(Path(f"{path}-wal").read_bytes())
    with contextlib.closing(sqlite3.connect(copy)) as db:
        (request,) = db.execute("SELECT request FROM jobs WHERE seq_id = ?", [seq_id]).fetchone()
    sealed: bytes = request[:80].encode()
    assert sealed in data
    return sealed
