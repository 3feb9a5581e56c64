"""Small random models, made with transformers' own config classes, and what transformers generates with them."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCAB_SIZE = 271  # not a multiple of 64: real vocabularies are not either
MAX_LEN = 512

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.2,  # wide enough that logits are far apart compared with float32 rounding
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}

CONFIGS: dict[str, PretrainedConfig] = {
    "llama-mha": LlamaConfig(**_SHAPE, num_key_value_heads=4, tie_word_embeddings=False),
    "llama-gqa-tied": LlamaConfig(**_SHAPE, num_key_value_heads=2, tie_word_embeddings=True),
    "llama-mqa-head24": LlamaConfig(**_SHAPE, num_key_value_heads=1, head_dim=24, tie_word_embeddings=False),
    "llama3-rope": LlamaConfig(
        **_SHAPE,
        num_key_value_heads=2,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "mistral-window": MistralConfig(**_SHAPE, num_key_value_heads=2, head_dim=16, sliding_window=37),
    "qwen2": Qwen2Config(**_SHAPE, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**_SHAPE, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True),
}


def make_model(name: str) -> PreTrainedModel:
    """A seeded random model of one of CONFIGS, float32, with biases and norms that are not trivial."""
    torch.manual_seed(1234)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.normal_(0.0, 0.5)
            elif "norm" in key:
                parameter.uniform_(0.5, 1.5)
    return model


def save_model(name: str, folder: Path, *, shards: int = 1) -> PreTrainedModel:
    """Write a model and a tokenizer in Hugging Face format; in several files if `shards` is more than 1."""
    model = make_model(name)
    size = sum(p.numel() * 4 for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=size if shards == 1 else size // shards)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return model


def byte_tokenizer() -> Tokenizer:
    """One token per byte after 15 special ones, so that any text has ids and most ids end within a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<bos>", "<eos>", *(f"<s{i}>" for i in range(13))]
    vocab = {token: i for i, token in enumerate([*special, *alphabet])}
    assert len(vocab) == VOCAB_SIZE
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def greedy(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """What transformers generates, without an early end."""
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return out[0, len(prompt) :].tolist()


def write_config(folder: Path, **changes: Any) -> None:
    """Change fields of a saved config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
