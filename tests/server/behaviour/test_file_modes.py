"""What a second user of the machine sees of a server's files: nothing, whatever the umask is."""

import logging
import os
import stat

import httpx
import pytest
from serving import ServerProcess

from splitfuse.engine.errors import ConfigError
from splitfuse.server.results.durable.sqlite_store import SqliteStore

LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 2}}\n'


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in paths if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]


def test_no_file_of_a_server_is_open_to_others(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    options = ["--record", str(home / "recording.jsonl")]
    # A umask is the process's, and processes are forked from one that has its own.
    with ServerProcess(
        *("--results", str(home / "results.db"), "--dtype", "float32", "--num-kv-blocks", "64", *options),
        wrapper=("sh", "-c", 'umask 022; exec "$@"', "sh"),
        env={"TMPDIR": str(home), "TRITON_CACHE_DIR": str(home / "triton")},
    ) as server:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for path, body in (("/generate", {"prompt": "x"}), ("/v1/responses", {"input": "x", "background": True})):
                assert client.post(path, json=body | {"max_tokens": 4} if path == "/generate" else body).is_success
            upload = client.post("/v1/files", files={"file": ("a.jsonl", LINE)}, data={"purpose": "batch"})
            fields = {"input_file_id": upload.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
            assert client.post("/v1/batches", json=fields).is_success
            while_it_runs = open_to_others(home)
        server.signal()
        server.wait()
    assert (home / "results.db").exists()
    assert (home / "recording.jsonl").stat().st_size > 0
    assert while_it_runs + open_to_others(home) == []


def test_results_are_not_made_through_a_link(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(ConfigError, match=r"--results .*link.db: a symbolic link"):
        SqliteStore(tmp_path / "link.db")
    assert not (tmp_path / "elsewhere.db").exists()
    SqliteStore(tmp_path / "elsewhere.db").close()
    SqliteStore(tmp_path / "link.db").close()


@pytest.mark.parametrize(("mode", "others"), [(0o666, "every user"), (0o640, "its group"), (0o600, "")])
def test_a_results_file_that_is_open_to_others_is_warned_of(tmp_path, caplog, mode, others):
    path = tmp_path / "results.db"
    SqliteStore(path).close()
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        SqliteStore(path).close()
    assert [record.getMessage() for record in caplog.records] == [
        f"--results {path}: {others} can read or write it: chmod 600 {path}"
    ] * bool(others)
