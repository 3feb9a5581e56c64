"""Weights that were read do not change when their file does."""

import io
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import save_model

from splitfuse.engine import LLM
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.formats import weights
from splitfuse.engine.formats.weights import DummySource, SafetensorsSource, files_and_names, weight_source

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to see what is mapped")
@pytest.mark.parametrize("name", ["llama-gqa-tied", "gpt2", "gemma2", "qwen3-moe"])
def test_a_model_maps_no_file(name: str, tmp_path: Path) -> None:
    save_model(name, tmp_path)
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", speculative_config={"model": str(tmp_path)})
    assert llm.engine.core.speculation.inner is not None
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file({"a": torch.ones(4096), "b": torch.ones(4096)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_a_file_that_is_cut_while_it_is_read_is_told(file: Path) -> None:
    source = SafetensorsSource(file.parent, dtype=torch.float32)
    os.truncate(file, 20_000)
    assert torch.equal(source.take("a", (4096,)), torch.ones(4096))
    with pytest.raises(ConfigError, match=r"model\.safetensors.*bytes early.*fetch"):
        source.take("b", (4096,))
    source.close()


def overwrite(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(20_000)
        opened.write(b"\xff" * 100)


def replace(file: Path) -> None:
    save_file({"a": torch.zeros(4096), "b": torch.zeros(4096)}, file.with_name("new"))
    file.with_name("new").rename(file)


@pytest.mark.parametrize("change", [overwrite, replace, Path.unlink], ids=["overwrite", "replace", "remove"])
def test_a_file_that_changes_while_it_is_read_is_refused(file: Path, change: Callable[[Path], None]) -> None:
    def load() -> None:
        with weight_source(file.parent, load_format="auto", dtype=torch.float32, seed=0, device=CPU) as source:
            source.take("a", (4096,))
            change(file)

    with pytest.raises(ConfigError, match=r"model\.safetensors was changed while it was read"):
        load()


def test_threads_take_tensors_at_once(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(200)]
    save_file({name: torch.full((5000,), float(name[1:])) for name in names}, tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path, dtype=torch.float32)
    with ThreadPoolExecutor(8) as pool:
        tensors = list(pool.map(lambda name: source.take(name, (5000,)), names))
    assert all(bool((tensor == number).all()) for number, tensor in enumerate(tensors))
    assert not source.unread()


@pytest.mark.parametrize("where", [["model.safetensors"], {}, 1, "../model.safetensors"])
def test_an_index_names_files_of_its_folder(where: object, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x", "b": where}}))
    with pytest.raises(ConfigError, match="names a file outside of its folder"):
        list(files_and_names(tmp_path))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def load(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(weights, "_DELAY_S", 0.0)
    source = DummySource(dtype=torch.float32, seed=0)
    with weights.with_progress(source, total=2) as counted:
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
