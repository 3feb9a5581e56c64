"""Wrong command lines: each is answered by one line that names the right thing to type."""

import errno
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tables import table

# Command line, and parts of the answer. The folder `models` has tiny-q4.gguf and the model folder `real`.
WRONG = table(__file__, "wrong")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two models."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "models/real").mkdir(parents=True)
    (folder / "models/real/config.json").write_text("{}")
    (folder / "models/tiny-q4.gguf").write_bytes(b"GGUF")
    return folder


@pytest.mark.parametrize("line", WRONG)
def test_the_answer_names_what_to_type(
    line: str, folder: Path, one_line_here: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPLITFUSE_PORT", "0")  # 8000 may be taken, and that would be the answer
    one_line_here(line.split(), *WRONG[line])


def test_there_are_forty() -> None:
    assert len(WRONG) >= 40


@pytest.mark.parametrize("size", ["4 TiB", "12MB"])
def test_every_unit_is_read(size: str, one_line_here: Callable[..., None]) -> None:
    one_line_here(["serve", "--kv-cache-memory-bytes", size, "--port", "x"], "--port: 'x' is not an integer")


def test_a_file_that_may_not_be_read(one_line_here: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:  # tests may run as root, who may read everything
        raise PermissionError(errno.EACCES, "Permission denied", "models/real")

    monkeypatch.setattr("splitfuse.server.commands.command_line.parse", refuse)
    one_line_here(["serve", "models/real"], "models/real: Permission denied; give this user the right to it")


def test_without_a_network_the_ways_out_are_named(
    folder: Path, one_line_here: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise httpx.ConnectError("[Errno -2] Name or service not known")

    monkeypatch.setattr("huggingface_hub.snapshot_download", no_network)
    ways = ("give a folder", "HF_HUB_OFFLINE=1", "HF_ENDPOINT")
    one_line_here(["generate", "some/name", "-p", "x"], "the hub does not give it", *ways)
    monkeypatch.chdir(folder)
    one_line_here(["generate", "models/reall", "-p", "x"], "did you mean models/real?")
