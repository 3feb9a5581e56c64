"""Fields of single families: metadata that would give wrong tokens is refused by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.formats.gguf.config_fields import config_fields
from splitfuse.engine.formats.gguf.file import read_gguf


@pytest.mark.parametrize(
    ("name", "metadata", "refusal"),
    [
        ("glm4", {"glm4.rope.dimension_sections": [8, 8]}, "only GLM-4-0414 is read"),
        ("glm4-moe", {"glm4moe.expert_gating_func": 1}, "expert_gating_func 1 is no sigmoid"),
        ("nemotron", {"nemotron.attention.key_length": 24}, "part of a head that turns is not known"),
        ("olmo3", {"olmo2.attention.sliding_window_pattern": 4}, "no list with a value for each layer"),
        ("gemma4", {"gemma4.feed_forward_length": memoryview(bytes([96, 96, 192, 96, 192, 192]))}, "must be double"),
        ("gemma4", {"gemma4.feed_forward_length": memoryview(b"")}, "missing or of the wrong kind"),
        ("gemma3n", {"gemma3n.attention.sliding_window_pattern": memoryview(b"1")}, "a value for each layer"),
        ("apertus", {"xielu.alpha_n": None}, r"xielu\.alpha_n is no list with a value for each layer"),
    ],
)
def test_refuses_by_name(name: str, metadata: dict[str, Any], refusal: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", name)
    file = read_gguf(tmp_path / "model.gguf")
    config_fields(file)
    with pytest.raises(ConfigError, match=refusal):
        config_fields(replace(file, metadata={**file.metadata, **metadata}))
