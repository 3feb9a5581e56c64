"""Files of running servers: found by their user, removed at exit and after a crash."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from splitfuse.server.process.runtime_file import announced, running_servers


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPLITFUSE_RUNTIME_DIR", str(tmp_path / "splitfuse"))
    return tmp_path / "splitfuse"


def test_a_server_is_found_while_it_runs(folder: Path) -> None:
    assert running_servers() == []
    with announced(host="127.0.0.1", port=81, model="m"):
        (found,) = running_servers()
        assert (found.pid, found.port, found.model, found.url) == (os.getpid(), 81, "m", "http://127.0.0.1:81")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert running_servers() == []
    assert list(folder.iterdir()) == []


def test_files_of_dead_processes_are_swept(folder: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with announced(host="127.0.0.1", port=81, model="m"):
        entry = json.loads((folder / f"{os.getpid()}.json").read_text())
        for name, change in (("1", {"pid": dead.pid}), ("2", {"started": "another process of this id"})):
            (folder / f"{name}.json").write_text(json.dumps({**entry, **change}, separators=(",", ":")))
        (folder / "3.json").write_text('{"splitfuse":"ser')
        (folder / "4.json").write_text("{")
        assert [found.port for found in running_servers()] == [81]
        names = {path.name for path in folder.iterdir()}
        assert names == {f"{os.getpid()}.json", "4.json"}, "4 may be another program's"


def test_a_folder_that_others_can_enter_is_not_used(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with announced(host="127.0.0.1", port=81, model="m"):
        assert list(folder.iterdir()) == []
        assert running_servers() == []


def test_a_server_starts_where_it_cannot_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITFUSE_RUNTIME_DIR", "/proc/nowhere")
    with announced(host="127.0.0.1", port=81, model="m"):
        assert running_servers() == []
