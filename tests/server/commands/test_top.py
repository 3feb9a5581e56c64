"""`splitfuse top` against a server process, and where there is none."""

import pytest

from splitfuse.server.cli import main


def test_one_screen_of_a_real_server(live_server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--url", live_server.url]) == 0
    out = capsys.readouterr().out
    assert "splitfuse-demo-5m  policy splitfuse  budget 512 tokens" in out
    assert "/128" in out
    assert "\x1b" not in out


def test_without_a_server(one_line_here) -> None:
    one_line_here(["top", "--once", "--url", "http://127.0.0.1:9"], "--url")
