"""client.py is generated from async_client.py, and nothing of asyncio remains in it."""

import importlib.util
import io
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_committed_client_is_the_generated_one() -> None:
    if importlib.util.find_spec("unasync") is None:
        pytest.skip("needs the package unasync")
    # In a process of its own: unasync imports setuptools, which refuses to be imported after distutils, and other tests
    # of the same worker may have imported that.
    code = "import unasync_client; print(unasync_client.generate(), end='')"
    generated = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT / "tests/tools", text=True)
    assert (ROOT / "client/client.py").read_text() == generated, "run `make unasync`"


def test_nothing_of_asyncio_remains() -> None:
    source = io.StringIO((ROOT / "client/client.py").read_text())
    names = {token.string for token in tokenize.generate_tokens(source.readline) if token.type == tokenize.NAME}
    assert not {name for name in names if "async" in name.lower() or name in ("await", "aclose", "__await__")}
