"""Short names: each stands for a file of an architecture that is served, and works where MODEL is taken."""

import re
from pathlib import Path

import pytest

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.config.short_names import SHORT_NAMES, HubModel, hub_name
from splitfuse.engine.execution.models.registry import MODELS
from splitfuse.engine.formats.checkpoint import local_model, model_folder
from splitfuse.engine.formats.gguf.architectures import ARCHITECTURES


@pytest.mark.parametrize(("name", "known"), SHORT_NAMES.items())
def test_a_short_name_is_a_file_of_a_served_family(name: str, known: HubModel) -> None:
    assert re.fullmatch(r"[a-z0-9.-]+(:e?[0-9.]+[bm])?", name)
    assert re.fullmatch(r"[\w.-]+/[\w.-]+:[\w.-]+\.gguf", known.hub_id)
    assert ARCHITECTURES[known.architecture].family in MODELS
    assert known.num_bytes > 10**8
    assert hub_name(name.upper()) == known.hub_id
    assert local_model(name) is None


def test_at_least_a_dozen_names_and_no_file_twice() -> None:
    assert len(SHORT_NAMES) >= 12
    assert len({known.hub_id for known in SHORT_NAMES.values()}) == len(SHORT_NAMES)
    assert hub_name("owner/name") == "owner/name"


def test_the_files_of_a_short_name_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, ...]] = []

    def download(*args: str, revision: str, local_files_only: bool) -> str:
        calls.append((*args, revision))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert model_folder(EngineConfig(model="qwen3:0.6b", revision="v2"), "qwen3:0.6b") == tmp_path
    assert calls == [("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", "v2")]


def test_a_folder_wins_over_a_short_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phi4-mini").mkdir()
    assert local_model("phi4-mini") == Path("phi4-mini")
