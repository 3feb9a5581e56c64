"""Changes of the model's files on the disk do not affect a running server."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from serving import ServerProcess

from splitfuse.engine.config import DEMO_FOLDER

# In the checkpoint's own dtype: what has to be converted is copied anyway.
SMALL = ("--num-kv-blocks", "128", "--max-model-len", "512", "--no-enable-prefix-caching")
ASKED = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo model and its draft model, in files of this test's own."""
    folder = tmp_path_factory.mktemp("files") / "model"
    shutil.copytree(DEMO_FOLDER, folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    draft = {"method": "draft_model", "model": str(folder / "draft"), "num_speculative_tokens": 3, "adaptive": False}
    with ServerProcess(str(folder), *SMALL, "--speculative-config", json.dumps(draft)) as server:
        yield server


@pytest.fixture(scope="module")
def before(server: ServerProcess) -> list[int]:
    return answer(server)


def answer(server: ServerProcess) -> list[int]:
    url = httpx.post(f"{server.url}/generate", json=ASKED).json()["result_url"]
    token_ids: list[int] = httpx.get(f"{server.url}{url}?wait=60", timeout=40).json()["token_ids"]
    return token_ids


def overwrite(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 20)
        opened.write(os.urandom(file.stat().st_size // 2))


def replace(file: Path) -> None:
    file.with_name("new").write_bytes(b"\x00" * file.stat().st_size)
    file.with_name("new").rename(file)


def truncate(file: Path) -> None:
    os.truncate(file, 1000)


@pytest.mark.parametrize("change", [overwrite, replace, truncate, Path.unlink], ids=lambda change: change.__name__)
def test_the_answers_stay_the_same(
    server: ServerProcess, folder: Path, before: list[int], change: Callable[[Path], None]
) -> None:
    assert len(before) == 24
    for file in (folder / "model.safetensors", folder / "draft" / "model.safetensors"):
        change(file)
    assert answer(server) == before
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert server.process.poll() is None
