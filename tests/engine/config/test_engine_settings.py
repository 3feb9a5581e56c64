"""Names of a served model: the one to show, and the ones that requests may use."""

import re
from pathlib import Path

import pytest

from splitfuse.engine.config import EngineConfig


@pytest.mark.parametrize(
    ("model", "shown", "others"),
    [
        ("{}/gemma-3-270m-Q4_K_M.gguf", "gemma-3-270m-Q4_K_M", ["gemma-3-270m:q4_k_m", "gemma-3-270m-Q4_K_M.gguf"]),
        ("{}/big-00001-of-00003.gguf", "big", ["big-00001-of-00003.gguf", "big:latest"]),
        ("{}", "folder", ["folder:latest"]),
        ("owner/name", "owner/name", ["name", "owner/name:latest"]),
        ("owner/name:File-Q8_0.gguf", "owner/name:File-Q8_0.gguf", ["File-Q8_0", "File-Q8_0.gguf"]),
        ("qwen3:0.6b", "qwen3:0.6b", ["qwen3-0.6b"]),
        ("demo", "splitfuse-demo-5m", ["splitfuse-demo-5m:latest"]),
    ],
)
def test_path_name_and_stem_are_names(tmp_path: Path, model: str, shown: str, others: list[str]) -> None:
    (folder := tmp_path / "folder").mkdir()
    model = model.format(folder)
    config = EngineConfig(model=model)
    assert config.model_names == (shown,)
    aliased = EngineConfig(model=model, served_model_name="alias,a-*")
    assert aliased.model_names == ("alias", "a-*")
    for name in (model, shown, *others):
        assert config.serves(name) or (model, name) == ("demo", "splitfuse-demo-5m")
    for name in (model, *others[:1], "alias", "a-b"):
        assert aliased.serves(name) or model == "demo", name
    assert not any(config.serves(name) for name in ("alias", "a-b", "gguf", "", f"{shown}-", re.sub("..$", "", shown)))
