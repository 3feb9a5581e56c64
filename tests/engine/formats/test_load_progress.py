"""A progress bar while weights load: on a terminal only, one step per tensor."""

import io
import sys

import pytest
import torch

from splitfuse.engine.formats import load_progress
from splitfuse.engine.formats.weights import DummySource


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def load(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(load_progress, "_DELAY_S", 0.0)
    source = DummySource(dtype=torch.float32, seed=0)
    with load_progress.with_progress(source, total=2) as counted:
        assert torch.equal(counted.take("a", (4,)), source.take("a", (4,)))
        assert counted.take_quantized("b", (2, 2)) is None
        counted.take("b", (2, 2))
        assert counted.has("b")
        assert counted.unread() == []
    return stream.getvalue()


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "loading" in (shown := load(monkeypatch, Terminal()))
    assert "3/2" not in shown, "a tensor that is asked for twice counts once"


def test_a_pipe_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch, io.StringIO()) == ""
