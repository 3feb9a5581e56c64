"""Model folders that cannot work: each is one line that names the file, and exit code 2."""

import json

import pytest
from serving import one_line, run_cli

from splitfuse.engine.config import DEMO_FOLDER

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
    "num_hidden_layers": 1, "vocab_size": 64, "max_position_embeddings": 64, "tie_word_embeddings": True,
    "dtype": "float32",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Return a model folder with a config and a tokenizer, and no weights."""
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


def adapter(folder):
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base"}')
    return "an adapter (LoRA or alike) for some/base"


def only_a_tokenizer(folder):
    (folder / "config.json").unlink()
    return "(tokenizer.json) and no model"


def several_ggufs(folder):
    for name in ("b.gguf", "a.gguf"):
        (folder / name).write_bytes(b"GGUF")
    return "name one: a.gguf, b.gguf"


def split_gguf(folder):
    for part in (1, 3):
        (folder / f"m-0000{part}-of-00003.gguf").write_bytes(b"GGUF")
    return "is one of 3 parts, and m-00002-of-00003.gguf is missing; fetch it, too"


def cut_gguf(folder):
    (folder / "model.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    return "model.gguf is not a GGUF file that can be read"


def gguf_of_another_architecture(folder):
    key, value = b"general.architecture", b"mamba"
    lengths = [len(text).to_bytes(8, "little") for text in (key, value)]
    header = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little")
    (folder / "model.gguf").write_bytes(header + lengths[0] + key + (8).to_bytes(4, "little") + lengths[1] + value)
    return "GGUF architecture 'mamba' is not known; `splitfuse models --supported` lists "


FAULTS = [
    *(without_config, broken_config, config_with_holes, unknown_architecture, no_weights, pickled_weights),
    *(truncated_weights, garbage_weights, foreign_weights, missing_shard, broken_index, broken_tokenizer, no_tokenizer),
    *(adapter, only_a_tokenizer, several_ggufs, split_gguf, cut_gguf, gguf_of_another_architecture),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_model_folder(folder, fault, one_line_here):
    named = fault(folder)
    one_line_here(["serve", str(folder), "--port", "0", "--num-threads", "1"], named)


def test_model_folder_in_a_process_of_its_own(folder):
    named = truncated_weights(folder)
    one_line(run_cli("serve", str(folder), "--port", "0"), named)


def test_a_file_that_is_no_model(folder, one_line_here):
    path = str(folder / "config.json")
    one_line_here(["serve", path, "--port", "0"], path, "no GGUF file")
    one_line_here(["serve", "name:tag", "--port", "0"], "owner/name:FILE.gguf")
