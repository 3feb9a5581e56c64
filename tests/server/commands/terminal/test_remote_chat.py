"""`chat` by itself talks to a running server only if the server lets it in."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from answering import answering, reply

from splitfuse.engine.errors import ConfigError
from splitfuse.server.commands.terminal.remote_chat import RemoteChat, server_of
from splitfuse.server.process.runtime_file import announced

HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202egnp.exe\r\n\x9b31m"


def models(request: BaseHTTPRequestHandler) -> None:
    """Answer with a model list that needs a key."""
    is_open = request.headers["Authorization"] == "Bearer sesame"
    body = {"data": [{"id": "m"}]} if is_open else {"error": {"message": HOSTILE}}
    reply(request, 200 if is_open else 401, json.dumps(body).encode())


@pytest.fixture
def port() -> Iterator[int]:
    with answering(models) as url:
        yield int(url.rpartition(":")[2])


def test_a_server_that_the_key_does_not_open_is_passed_over(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPLITFUSE_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("SPLITFUSE_API_KEY", raising=False)
    with announced(host="127.0.0.1", port=port, model="m"):
        assert server_of("m", port=port, api_key=None) is None
        assert server_of("m", port=port, api_key="sesame") == f"http://127.0.0.1:{port}"
        assert server_of("another", port=port, api_key="sesame") is None


def test_a_servers_words_move_no_cursor(port: int) -> None:
    with pytest.raises(ConfigError) as info, RemoteChat(f"http://127.0.0.1:{port}", api_key=None):
        pass
    assert "gnp.exe" in str(info.value)
    assert str(info.value).isprintable()
