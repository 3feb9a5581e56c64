"""client.py is generated from async_client.py, and nothing of asyncio remains in it."""

import io
import runpy
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_committed_client_is_the_generated_one() -> None:
    pytest.importorskip("unasync", reason="needs the package unasync")
    generate = runpy.run_path(str(ROOT / "tests/tools/unasync_client.py"))["generate"]
    assert (ROOT / "client/client.py").read_text() == generate(), "run `make unasync`"


def test_nothing_of_asyncio_remains() -> None:
    source = io.StringIO((ROOT / "client/client.py").read_text())
    names = {token.string for token in tokenize.generate_tokens(source.readline) if token.type == tokenize.NAME}
    assert not {name for name in names if "async" in name.lower() or name in ("await", "aclose", "__await__")}
