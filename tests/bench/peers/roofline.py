"""Roofline of this machine: its two rates, measured, and the least seconds of a load at these rates.

A forward pass reads every weight once and every sequence's keys and values once, and multiplies; the slower of reading
and multiplying bounds it (Williams et al. 2009). Norms, activations and sampling count nothing. Of a mixture it reads
the experts that tokens choose, where every expert is as likely as another.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from splitfuse.engine.execution.models.config import ModelConfig
from splitfuse.engine.execution.models.memory_plan import kv_bytes_per_token
from splitfuse.kernels import large_pages, ops

PROMPT_ROWS = 1024  # rows of the matrix product whose rate is measured
_REPEATS = 5
_MOST_BYTES = 2**30  # of the buffer that is read: far beyond all caches


@dataclass(frozen=True)
class Rates:
    """Rates of this machine without other work."""

    bandwidth: float  # bytes read per second
    matmul: float  # FLOP per second of packed bfloat16 linears


@dataclass(frozen=True)
class Cost:
    """Cost of a model's forward pass: a bfloat16 cache, the output matrix only for rows that sample a token."""

    config: ModelConfig
    weight_bits: float = 16.0  # scales included
    head_bits: float | None = None  # of the output matrix; None: weight_bits

    @property
    def layer_params(self) -> int:
        """Number of matrix elements of all layers."""
        return self.config.num_layers * sum(rows * columns for rows, columns in layer_shapes(self.config))

    @property
    def head_params(self) -> int:
        """Number of elements of the output matrix."""
        return self.config.vocab_size * self.config.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Number of bytes of the weights, which a pass reads once."""
        head_bits = self.weight_bits if self.head_bits is None else self.head_bits
        return int((self.layer_params * self.weight_bits + self.head_params * head_bits) / 8)

    def bytes_read(self, num_tokens: int) -> float:
        """Return the bytes of the weights that a pass of this many tokens reads."""
        return self.weight_bytes

    def seconds(self, rates: Rates, *, num_seqs: int, start: int, num_tokens: int) -> float:
        """Return the least seconds of a pass over tokens [start, start + num_tokens) of every sequence."""
        config = self.config
        end = start + num_tokens
        bytes_read = self.bytes_read(num_seqs * num_tokens)
        bytes_read += num_seqs * end * kv_bytes_per_token(config, torch.bfloat16)
        pairs = num_seqs * (end * (end + 1) - start * (start + 1)) / 2  # pairs of a query and a key
        flop = 2 * num_seqs * (num_tokens * self.layer_params + self.head_params)
        flop += 4 * pairs * config.num_layers * config.num_heads * config.head_dim
        return max(bytes_read / rates.bandwidth, flop / rates.matmul)

    def generate_seconds(self, rates: Rates, *, num_seqs: int, prompt_len: int, output_len: int) -> float:
        """Return the least seconds of the prompts in one pass, then one pass per further token."""
        decodes = range(prompt_len, prompt_len + output_len - 1)
        return self.seconds(rates, num_seqs=num_seqs, start=0, num_tokens=prompt_len) + sum(
            self.seconds(rates, num_seqs=num_seqs, start=start, num_tokens=1) for start in decodes
        )


@dataclass(frozen=True)
class MixtureCost(Cost):
    """Cost of a model with experts in every layer."""

    expert_bytes: int = 0  # of all experts
    other_bytes: int = 0

    @property
    def weight_bytes(self) -> int:
        return self.expert_bytes + self.other_bytes

    def bytes_read(self, num_tokens: int) -> float:
        experts = self.config.hf_config["experts"]
        share = 1 - (1 - experts.num_experts_per_tok / experts.num_experts) ** num_tokens
        return self.expert_bytes * share + self.other_bytes


def layer_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """Return the shapes of a layer's fused matrices: rows (outputs), columns (inputs); of a token's experts alone."""
    query = config.num_heads * config.head_dim
    key_value = 2 * config.num_kv_heads * config.head_dim
    hidden, inner, experts = config.hidden_size, config.intermediate_size, config.hf_config.get("experts")
    if experts is not None:
        inner = experts.num_experts_per_tok * experts.intermediate_size
    return [(query + key_value, hidden), (hidden, query), (2 * inner, hidden), (hidden, inner)]


class Meter:
    """Meter of the rates on a model's own sizes; keeps its buffers, so that a repeated measurement costs only time."""

    def __init__(self, config: ModelConfig, *, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        self._buffer = large_pages.contiguous(torch.ones(min(Cost(config).weight_bytes, _MOST_BYTES) // 4))
        self._linears = [
            (torch.randn(PROMPT_ROWS, columns).bfloat16(), ops.pack_linear(torch.randn(rows, columns).bfloat16()))
            for rows, columns in layer_shapes(config)
        ]
        self._flop = 2 * PROMPT_ROWS * sum(rows * columns for rows, columns in layer_shapes(config))

    @torch.inference_mode()
    def measure(self) -> Rates:
        """Return the best of a few tries of both rates."""
        num_bytes = self._buffer.numel() * 4
        return Rates(num_bytes / _fastest(lambda: self._buffer.sum()), self._flop / _fastest(self._multiply))

    def _multiply(self) -> None:
        for x, packed in self._linears:
            ops.linear(x, packed)


def _fastest(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
