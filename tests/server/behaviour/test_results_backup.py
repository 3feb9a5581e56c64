"""Copies of a results file that a server writes: made under load, and a server on the copy goes on from there."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from kept_results import ARGS, PROMPT, comparable, whole_result
from serving import ServerProcess, run_cli

from splitfuse.server.settings import Settings

BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 150, "temperature": 0, "ignore_eos": True}


def submit(client: httpx.Client, number: int) -> str:
    answer = client.post("/generate", json={**BODY, "max_tokens": 10 + 120 * number})
    assert answer.status_code == 202, answer.text
    seq_id: str = answer.json()["seq_id"]
    return seq_id


@pytest.mark.thorough
def test_a_copy_made_under_load_goes_on_where_it_was_made(tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with (
        ServerProcess(*ARGS, "--results", str(tmp_path / "results.db")) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        seq_ids = [submit(client, number) for number in range(10)]
        first = whole_result(client, seq_ids[0])
        assert client.post("/results/backup", json={"path": str(copy)}).status_code == 200
        statuses = [client.get(f"/result/{seq_id}").json()["status"] for seq_id in seq_ids]
        refused = client.post("/results/backup", json={"path": str(copy)})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "path")
        assert "exists" in refused.json()["error"]["message"]
        assert client.post("/results/backup", json={"path": "copy.db"}).status_code == 400
        nowhere = client.post("/results/backup", json={"path": str(tmp_path / "none" / "copy.db")})
        assert "none/copy.db cannot be written" in nowhere.json()["error"]["message"]
        later = submit(client, 0)
        expected = [comparable(whole_result(client, seq_id)) for seq_id in seq_ids]
        done = run_cli("results", "backup", str(tmp_path / "second.db"), "--url", server.url)
        assert (done.returncode, done.stdout.partition(": ")[0]) == (0, str(tmp_path / "second.db")), done.stderr
        server.process.kill()
    assert set(statuses) - {"completed"}, "the copy was made amid work"
    assert copy.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.glob("*.part")] == []
    with (
        ServerProcess(*ARGS, "--results", str(copy)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        assert comparable(client.get(f"/result/{seq_ids[0]}").json()) == comparable(first)
        assert [comparable(whole_result(client, seq_id)) for seq_id in seq_ids] == expected
        assert client.get(f"/result/{later}").status_code == 404


def test_killed_amid_a_copy_both_files_are_sound(tmp_path: Path) -> None:
    results, copy = tmp_path / "results.db", tmp_path / "copy.db"
    with (
        ServerProcess(*ARGS, "--results", str(results)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        seq_ids = [submit(client, number) for number in range(6)]
        expected = [comparable(whole_result(client, seq_id)) for seq_id in seq_ids]
        with contextlib.suppress(httpx.HTTPError):
            client.post("/results/backup", json={"path": str(copy)}, timeout=0.005)
        server.process.kill()
    for path in (results, copy) if copy.exists() else (results,):
        with contextlib.closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    copy.unlink(missing_ok=True)
    with (
        ServerProcess(*ARGS, "--results", str(results)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        assert [comparable(whole_result(client, seq_id)) for seq_id in seq_ids] == expected
        assert client.post("/results/backup", json={"path": str(copy)}).status_code == 200
        assert copy.exists()


@pytest.mark.parametrize("settings", [Settings(api_key=("secret",), admin_key=("boss",))])
async def test_only_an_admin_makes_copies(served: Any, tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer secret"}
    answer = await served.client.post("/results/backup", json={"path": str(tmp_path / "a.db")}, headers=headers)
    assert answer.status_code in (403, 404)
