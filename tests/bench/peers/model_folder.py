"""A Hugging Face folder with seeded random bf16 weights and a made-up tokenizer: what every peer is given."""

import json
import subprocess
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from splitfuse.engine.execution.models.weights import DummySource
from splitfuse.engine.serving.bench_offline import SHAPES

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_model_folder(folder: Path, shape: str, *, seed: int = 0) -> Path:
    """The folder, with the weights that `--load-format dummy` makes for this shape and seed; kept if it is there."""
    if (folder / "tokenizer_config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
    save_file(_tensors(folder, seed), folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(SHAPES[shape]["vocab_size"]).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def write_gguf(folder: Path, python: str) -> None:
    """The same weights for llama.cpp, beside the folder, written by its venv's interpreter."""
    file = folder.with_name(f"{folder.name}.gguf")
    if not file.exists():
        subprocess.run([python, str(Path(__file__).with_name("gguf_file.py")), str(folder), str(file)], check=True)


def _tensors(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    source = DummySource(dtype=torch.bfloat16, seed=seed)
    return {name: source.take(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()}


def _tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level: the bytes, then words of four letters with a space before them, so that any id is text."""
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    for number in range(vocab_size - len(words)):
        letters = "".join(_LETTERS[number // 26**place % 26] for place in range(4))
        words.append("Ġ" + letters)
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
