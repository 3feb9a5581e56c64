"""Sampling values of a model's files: which are read, what overrides them, and how a wrong one is refused."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from splitfuse.engine.config import DEMO_FOLDER, EngineConfig
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.default_sampling import GENERIC, default_sampling, table
from splitfuse.engine.execution.models.registry import MODELS

SHARED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
OF_MODEL, READ = {**SHARED, "max_new_tokens": 300}, {**SHARED, "max_tokens": 300}


def folder_with(folder: Path, fields: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return folder


def defaults(
    folder: Path, *, architecture: str = "OPTForCausalLM", template: str | None = None, **settings: Any
) -> dict[str, Any]:
    stated = default_sampling(EngineConfig(model=str(folder), **settings), folder)
    return stated.complete(architecture=architecture, template=template).values()


def test_the_models_file_is_read_and_the_rest_of_it_left(tmp_path: Path) -> None:
    rest = {"eos_token_id": 2, "do_sample": False, "max_length": 4096, "typical_p": 0.3, "transformers_version": "4"}
    assert defaults(folder_with(tmp_path, OF_MODEL | rest)) == READ


def test_a_stated_neutral_value_is_the_models(tmp_path: Path) -> None:
    assert defaults(folder_with(tmp_path, {"temperature": 1.0, "top_p": 1, "top_k": -1})) == {"temperature": 1.0}


@pytest.mark.parametrize("fields", [None, {}, dict.fromkeys(OF_MODEL), {"do_sample": False, "eos_token_id": 2}])
def test_a_model_that_states_no_distribution_has_the_usual_one(tmp_path: Path, fields: dict[str, Any] | None) -> None:
    if fields is not None:
        folder_with(tmp_path, fields)
    assert defaults(tmp_path) == {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    assert defaults(tmp_path, override_generation_config={"temperature": 0.1}) == GENERIC | {"temperature": 0.1}
    assert defaults(tmp_path, generation_config="vllm") == {"temperature": 1.0}


@pytest.mark.parametrize(
    ("architecture", "template", "expected"),
    [
        ("LlamaForCausalLM", "<|start_header_id|>", {"temperature": 0.6, "top_p": 0.9}),
        ("LlamaForCausalLM", "<|im_start|>You are SmolLM", {"temperature": 0.2, "top_p": 0.9}),
        ("LlamaForCausalLM", "[INST] <<SYS>>", {"temperature": 0.6, "top_p": 0.9}),
        ("LlamaForCausalLM", "[INST]", {"temperature": 0.3}),
        ("LlamaForCausalLM", "<|im_start|>", GENERIC),
        (
            "Qwen2ForCausalLM",
            "<|im_start|>",
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
        ),
        ("Qwen2ForCausalLM", "<｜Assistant｜><think>", {"temperature": 0.6, "top_p": 0.95}),
        ("Qwen3ForCausalLM", "<think>", {"temperature": 0.6, "top_p": 0.95, "top_k": 20}),
        ("Gemma3ForCausalLM", "<start_of_turn>", {"temperature": 1.0, "top_p": 0.95, "top_k": 64}),
        ("Gemma3ForCausalLM", None, GENERIC),
        ("GraniteForCausalLM", "<|start_of_role|>", {"temperature": 0.0}),
    ],
)
def test_a_chat_model_has_its_familys_values(
    tmp_path: Path, architecture: str, template: str | None, expected: dict[str, Any]
) -> None:
    found = defaults(tmp_path, architecture=architecture, template=template)
    assert found == expected
    kept = folder_with(tmp_path, {"top_p": 0.5, "max_new_tokens": 9})
    assert defaults(kept, architecture=architecture, template=template) == {
        "temperature": 1.0,
        "top_p": 0.5,
        "max_tokens": 9,
    }


def test_every_row_of_the_table_is_of_a_served_family() -> None:
    assert {name for row in table() for name in row.architectures} <= MODELS.keys()


def test_vllm_means_neutral_and_another_folder_its_file(tmp_path: Path) -> None:
    model = folder_with(tmp_path / "model", OF_MODEL)
    other = folder_with(tmp_path / "other", {"temperature": 0.1})
    assert defaults(model, generation_config="vllm") == {"temperature": 1.0}
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
    assert defaults(model, generation_config="vllm") == {"temperature": 1.0}


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
    assert defaults(path, generation_config="vllm") == {"temperature": 1.0}
    assert defaults(gguf_with(tmp_path / "b.gguf")) == GENERIC
    assert defaults(gguf_with(tmp_path / "c.gguf", penalty_repeat=1.1)) == GENERIC | {"repetition_penalty": 1.1}


def test_the_demo_states_its_values() -> None:
    assert defaults(DEMO_FOLDER) == {"temperature": 0.7, "top_p": 0.95}
