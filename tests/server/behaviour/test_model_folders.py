"""Model folders that cannot work: each is one line that names the file, and exit code 2."""

import json

import pytest
from serving import one_line, run_cli

from splitfuse.engine.config import DEMO_FOLDER

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


@pytest.fixture
def folder(tmp_path):
    """A model folder with a config and a tokenizer, and no weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_bytes((DEMO_FOLDER / "tokenizer.json").read_bytes())
    return tmp_path


def without_config(folder):
    (folder / "config.json").unlink()
    return "config.json"


def broken_config(folder):
    (folder / "config.json").write_text('{"architectures": [')
    return "config.json"


def config_with_holes(folder):
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return "config.json"


def unknown_architecture(folder):
    (folder / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["NoSuchForCausalLM"]}))
    (folder / "model.safetensors").write_bytes((DEMO_FOLDER / "model.safetensors").read_bytes())
    return "NoSuchForCausalLM"


def no_weights(folder):
    return "model.safetensors"


def pickled_weights(folder):
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    return "pytorch_model.bin"


def truncated_weights(folder):
    (folder / "config.json").write_bytes((DEMO_FOLDER / "config.json").read_bytes())
    (folder / "model.safetensors").write_bytes((DEMO_FOLDER / "model.safetensors").read_bytes()[:100_000])
    return "model.safetensors"


def garbage_weights(folder):
    (folder / "model.safetensors").write_bytes(b"\xff" * 1000)
    return "model.safetensors"


def foreign_weights(folder):
    (folder / "model.safetensors").write_bytes((DEMO_FOLDER / "model.safetensors").read_bytes())
    return "model.safetensors"


def missing_shard(folder):
    index = {"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return "model-00001-of-00002.safetensors"


def broken_index(folder):
    (folder / "model.safetensors.index.json").write_text("[]")
    return "model.safetensors.index.json"


def broken_tokenizer(folder):
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((DEMO_FOLDER / name).read_bytes())
    (folder / "tokenizer.json").write_text("{}")
    return "tokenizer.json"


def no_tokenizer(folder):
    broken_tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    return "tokenizer.json"


FAULTS = [
    *(without_config, broken_config, config_with_holes, unknown_architecture, no_weights, pickled_weights),
    *(truncated_weights, garbage_weights, foreign_weights, missing_shard, broken_index, broken_tokenizer, no_tokenizer),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_model_folder(folder, fault, one_line_here):
    named = fault(folder)
    one_line_here(["serve", str(folder), "--port", "0", "--num-threads", "1"], named)


def test_model_folder_in_a_process_of_its_own(folder):
    named = truncated_weights(folder)
    one_line(run_cli("serve", str(folder), "--port", "0"), named)
