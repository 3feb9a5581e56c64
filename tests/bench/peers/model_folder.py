"""Model of all peers: a Hugging Face folder with seeded random bf16 weights and a made-up tokenizer."""

import json
import subprocess
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from splitfuse.engine.formats.weights import DummySource

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_model_folder(folder: Path, config: dict[str, Any], *, seed: int = 0) -> Path:
    """Write the folder, with the weights of `--load-format dummy` for this config and seed, unless it exists."""
    if (folder / "tokenizer_config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_tensors(folder, seed), folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def write_gguf(folder: Path, python: str) -> None:
    """Write the folder's weights as a GGUF file beside it, by the interpreter of llama.cpp's venv."""
    file = folder.with_name(f"{folder.name}.gguf")
    if not file.exists():
        subprocess.run([python, str(Path(__file__).with_name("gguf_file.py")), str(folder), str(file)], check=True)


def _tensors(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    source = DummySource(dtype=torch.bfloat16, seed=seed)
    return {name: source.take(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()}


def _tokenizer(vocab_size: int) -> Tokenizer:
    """Return a byte-level tokenizer: bytes, then words of a space and four letters, so that any id is text."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]  # a GGUF file has at least one merge
    for number in range(vocab_size - len(words)):
        letters = "".join(_LETTERS[number // 26**place % 26] for place in range(4))
        words.append("Ġ" + letters)
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
