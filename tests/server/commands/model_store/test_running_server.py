"""`splitfuse ps`: running servers, whatever their state."""

import json
import os

import pytest

from splitfuse.server.cli import main
from splitfuse.server.process.runtime_file import announced
from splitfuse.server.settings import Settings


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SPLITFUSE_RUNTIME_DIR", str(tmp_path / "splitfuse"))


def test_no_server(capfd):
    assert main(["ps"]) == 0
    assert capfd.readouterr().out == "no server of yours runs here; splitfuse serve starts one\n"


@pytest.mark.parametrize(
    ("settings", "words", "expected"),
    [
        (Settings(), (), ("ready", 0)),
        (Settings(api_key=("k",)), (), ("needs a key", None)),
        (Settings(api_key=("k",)), ("--api-key", "k"), ("ready", 0)),
        (Settings(api_key=("k",)), ("in the variable",), ("ready", 0)),
    ],
)
async def test_a_server_and_its_requests(settings, words, expected, served, capfd, monkeypatch):
    import asyncio

    if words == ("in the variable",):
        words = ()
        monkeypatch.setenv("SPLITFUSE_API_KEY", "k, another")
    port = int(served.url.rpartition(":")[2])
    with announced(host="127.0.0.1", port=port, model="m"):
        assert await asyncio.to_thread(main, ["ps", "--json", *words]) == 0
        (server,) = json.loads(capfd.readouterr().out)
        assert (server["state"], server["running"]) == expected
        assert (server["port"], server["model"], server["pid"]) == (port, "m", os.getpid())
        assert server["memory"] > 10**7
        assert await asyncio.to_thread(main, ["ps", *words]) == 0
        head, row = capfd.readouterr().out.splitlines()
        assert head.split() == ["PORT", "MODEL", "PID", "STATE", "RUNNING", "WAITING", "MEMORY", "URL"]
        assert row.split()[:3] == [str(port), "m", str(os.getpid())]


def test_a_server_that_does_not_answer(capfd):
    with announced(host="127.0.0.1", port=1, model="m"):
        assert main(["ps", "--json"]) == 0
        assert json.loads(capfd.readouterr().out)[0]["state"] == "silent"
