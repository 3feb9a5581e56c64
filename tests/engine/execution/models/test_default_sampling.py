"""Sampling values of a model's files: which are read, what overrides them, and how a wrong one is refused."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from splitfuse.engine.config import DEMO_FOLDER, EngineConfig
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.default_sampling import default_sampling_params

SHARED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
OF_MODEL, READ = {**SHARED, "max_new_tokens": 300}, {**SHARED, "max_tokens": 300}


def folder_with(folder: Path, fields: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return folder


def defaults(folder: Path, **settings: Any) -> dict[str, Any]:
    return default_sampling_params(EngineConfig(model=str(folder), **settings), folder)


def test_the_models_file_is_read_and_the_rest_of_it_left(tmp_path: Path) -> None:
    rest = {"eos_token_id": 2, "do_sample": False, "max_length": 4096, "typical_p": 0.3, "transformers_version": "4"}
    assert defaults(folder_with(tmp_path, OF_MODEL | rest)) == READ


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0, "top_p": 1, "top_k": -1}, dict.fromkeys(OF_MODEL)])
def test_neutral_values_are_no_defaults(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert defaults(folder_with(tmp_path, fields)) == {}


def test_a_folder_without_the_file_is_neutral(tmp_path: Path) -> None:
    assert defaults(tmp_path) == {}


def test_vllm_means_neutral_and_another_folder_its_file(tmp_path: Path) -> None:
    model = folder_with(tmp_path / "model", OF_MODEL)
    other = folder_with(tmp_path / "other", {"temperature": 0.1})
    assert defaults(model, generation_config="vllm") == {}
    assert defaults(model, generation_config=str(other)) == {"temperature": 0.1}
    with pytest.raises(ConfigError, match=r"none/generation_config.json is missing; give auto, vllm, or a folder"):
        defaults(model, generation_config=str(tmp_path / "none"))


def test_an_override_replaces_single_values(tmp_path: Path) -> None:
    model = folder_with(tmp_path, OF_MODEL)
    override = {"temperature": 0, "top_p": 1.0, "top_k": None, "max_new_tokens": 9}
    expected = {"temperature": 0.0, "min_p": 0.05, "repetition_penalty": 1.1, "max_tokens": 9}
    assert defaults(model, override_generation_config=override) == expected
    alone = defaults(model, generation_config="vllm", override_generation_config=override)
    assert alone == {"temperature": 0.0, "max_tokens": 9}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("temperature", r"^override_generation_config must be an object$"),
        ({"temprature": 1}, r"^override_generation_config: 'temprature' is not known; known are temperature, top_p, "),
        ({"temperature": -1}, r"^override_generation_config: temperature must be a finite number from 0 to 100$"),
        ({"max_new_tokens": 0}, r"^override_generation_config: max_new_tokens must be between 1 and "),
    ],
)
def test_a_wrong_override_is_refused_by_name(tmp_path: Path, override: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        defaults(tmp_path, override_generation_config=override)


def test_a_wrong_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    model = folder_with(tmp_path, {"top_p": "high"})
    way_out = r"generation_config.json \(--generation-config vllm leaves its values out\): top_p must be"
    with pytest.raises(ConfigError, match=way_out):
        defaults(model)
    assert defaults(model, generation_config="vllm") == {}


def gguf_with(path: Path, **values: float) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in values.items():
        getattr(writer, f"add_sampling_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_gguf_file_has_keys_of_its_own(tmp_path: Path) -> None:
    path = gguf_with(tmp_path / "a.gguf", temp=0.6, top_p=0.95, top_k=20, min_p=0.05, penalty_repeat=1.1, mirostat=1)
    assert defaults(path) == SHARED
    assert defaults(path, generation_config="vllm") == {}


def test_a_named_model_has_its_authors_values_where_its_file_has_none(tmp_path: Path) -> None:
    config = EngineConfig(model="smollm2")
    assert default_sampling_params(config, gguf_with(tmp_path / "a.gguf")) == {"temperature": 0.2, "top_p": 0.9}
    path = gguf_with(tmp_path / "b.gguf", temp=0.5)
    assert default_sampling_params(config, path) == {"temperature": 0.5, "top_p": 0.9}
    assert default_sampling_params(EngineConfig(), DEMO_FOLDER) == {"temperature": 0.7, "top_p": 0.95}
