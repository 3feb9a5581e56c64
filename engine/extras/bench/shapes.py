"""Shapes of models that are measured without a checkpoint; Point: load of one measurement."""

import json
from dataclasses import dataclass
from pathlib import Path
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


# Hugging Face configs of models to measure without a checkpoint.
SHAPES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
