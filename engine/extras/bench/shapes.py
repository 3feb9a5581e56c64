"""Shapes of models that are measured without a checkpoint; Point: load of one measurement."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Point:
    """Load of `num_seqs` prompts at once, of `prompt_len` tokens each."""

    num_seqs: int
    prompt_len: int

    @classmethod
    def parse(cls, text: str) -> "Point":
        """Read a load such as "8x128": 8 prompts of 128 tokens. Raises ValueError."""
        num_seqs, prompt_len = map(int, text.lower().split("x"))
        if min(num_seqs, prompt_len) < 1:
            raise ValueError(text)
        return cls(num_seqs, prompt_len)

    def prompts(self, vocab_size: int, *, seed: int) -> list[list[int]]:
        """Draw prompts of random ids."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, vocab_size, (self.num_seqs, self.prompt_len), generator=generator).tolist()

    def __str__(self) -> str:
        return f"{self.num_seqs} x {self.prompt_len}"


_COMMON = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "dtype": "bfloat16"}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_COMMON}
_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **_COMMON, "rms_norm_eps": 1e-6}
_LONG = {
    "max_position_embeddings": 131072,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
}


def _sizes(
    hidden: int, *, layers: int, heads: int, kv_heads: int, head_dim: int, inner: int, vocab: int
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": inner,
        "vocab_size": vocab,
    }


# Hugging Face configs of models to measure without a checkpoint.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-40m": _LLAMA | _sizes(512, layers=8, heads=8, kv_heads=4, head_dim=64, inner=1408, vocab=32000),
    "llama-221m": _LLAMA | _sizes(1024, layers=16, heads=16, kv_heads=8, head_dim=64, inner=2816, vocab=32000),
    "smollm2-135m": _LLAMA | _sizes(576, layers=30, heads=9, kv_heads=3, head_dim=64, inner=1536, vocab=49152),
    "qwen3-0.6b": {
        **_QWEN3,
        **_sizes(1024, layers=28, heads=16, kv_heads=8, head_dim=128, inner=3072, vocab=151936),
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
    },
    "llama-3.2-1b": {
        **_LLAMA,
        **_sizes(2048, layers=16, heads=32, kv_heads=8, head_dim=64, inner=8192, vocab=128256),
        **_LONG,
    },
    "llama-3.2-3b": {
        **_LLAMA,
        **_sizes(3072, layers=28, heads=24, kv_heads=8, head_dim=128, inner=8192, vocab=128256),
        **_LONG,
    },
    "qwen3-1.7b": {
        **_QWEN3,
        **_sizes(2048, layers=28, heads=16, kv_heads=8, head_dim=128, inner=6144, vocab=151936),
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
    },
    "qwen3-4b": {
        **_QWEN3,
        **_sizes(2560, layers=36, heads=32, kv_heads=8, head_dim=128, inner=9728, vocab=151936),
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
    },
    "llama-3.1-8b": {
        **_LLAMA,
        **_sizes(4096, layers=32, heads=32, kv_heads=8, head_dim=128, inner=14336, vocab=128256),
        **_LONG,
        "tie_word_embeddings": False,
    },
}
