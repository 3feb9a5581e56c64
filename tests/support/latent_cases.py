"""Rows over a poisoned latent cache, for the kernel tests, and the same attention with expanded keys and values."""

from typing import NamedTuple

import torch
from kernel_cases import DEVICE, UNMAPPED, random_tensor
from torch import Tensor

from splitfuse.kernels import ops


class Sizes(NamedTuple):
    num_heads: int
    rank: int
    nope: int
    rotary: int
    value: int


TINY, DEEPSEEK, GLM = Sizes(4, 24, 12, 8, 20), Sizes(16, 512, 128, 64, 128), Sizes(20, 512, 192, 64, 256)


class Tokens(NamedTuple):
    """Inputs of one sequence: queries [L, Hq, nope + rotary], latents [L, rank], keys [L, rotary]."""

    q: Tensor
    latent: Tensor
    k: Tensor


class World:
    """Sequences, their blocks in one cache of NaN, the matrices of heads, and angles."""

    def __init__(self, sizes: Sizes, lengths: list[int], dtype: torch.dtype, *, block_size: int = 16) -> None:
        self.sizes, self.block_size = sizes, block_size
        heads, rank, nope, rotary, value = sizes
        self.key_up = random_tensor(heads, rank, nope, seed=1, dtype=dtype) / nope**0.5
        self.value_up = random_tensor(heads, value, rank, seed=2, dtype=dtype) / rank**0.5
        angles = random_tensor(max(lengths), rotary // 2, seed=3, dtype=torch.float32)
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
        self.args = ops.AttentionArgs((nope + rotary) ** -0.5, value_dim=rank)
        self.tokens = [
            Tokens(
                random_tensor(length, heads, nope + rotary, seed=10 + row, dtype=dtype),
                random_tensor(length, rank, seed=30 + row, dtype=dtype),
                random_tensor(length, rotary, seed=50 + row, dtype=dtype),
            )
            for row, length in enumerate(lengths)
        ]
        counts = [-(-length // block_size) for length in lengths]
        blocks = iter(torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(0)).tolist())
        self.tables = torch.full((len(lengths), max(counts) + 1), UNMAPPED, dtype=torch.int32)
        for row, count in enumerate(counts):
            self.tables[row, :count] = torch.tensor([next(blocks) for _ in range(count)])
        self.num_blocks = sum(counts) + 2

    def cache(self, dtype: torch.dtype) -> ops.CacheView:
        width = ops.token_width(self.sizes.rank + self.sizes.rotary, dtype)
        shape = (self.num_blocks, 1, self.block_size, width)
        lines = torch.zeros(shape, dtype=dtype) if dtype == torch.int8 else torch.full(shape, float("nan")).to(dtype)
        return ops.CacheView(lines.to(DEVICE), lines.to(DEVICE)) if DEVICE != "cpu" else ops.CacheView(lines, lines)

    def step(self, rows: list[tuple[int, int, int]], *, dtype: torch.dtype | None = None) -> "Step":
        """Return the inputs of tokens [begin, end) of sequences, rows of one token first."""
        parts = [Tokens(*(x[begin:end] for x in self.tokens[row])) for row, begin, end in rows]
        positions = torch.cat([torch.arange(begin, end) for _, begin, end in rows])
        owners = torch.cat([torch.full((end - begin,), row) for row, begin, end in rows])
        slots = self.tables[owners, positions // self.block_size].long() * self.block_size + positions % self.block_size
        lengths = [end - begin for _, begin, end in rows]
        ragged = ops.RaggedBatch(
            torch.tensor([0, *lengths]).cumsum(0).int().to(DEVICE),
            torch.tensor([end for _, _, end in rows], dtype=torch.int32, device=DEVICE),
            self.tables[[row for row, _, _ in rows]].contiguous().to(DEVICE),
            sum(length == 1 for length in lengths),
            max(lengths),
            max(end for _, _, end in rows),
        )
        joined = [torch.cat([part[i] for part in parts]) for i in range(3)]
        # Queries and keys are columns of wider matrices, like in the model.
        wide = torch.full(
            (len(positions), joined[0][0].numel() + 7), float("nan"), dtype=joined[0].dtype, device=DEVICE
        )
        wide[:, 3:-4] = joined[0].flatten(1)
        q = wide[:, 3:-4].unflatten(1, joined[0].shape[1:])
        if dtype is not None:
            q, joined[1:] = q.to(dtype), [x.to(dtype) for x in joined[1:]]
        return Step(q, joined[1], joined[2], positions.to(DEVICE), slots.to(DEVICE), ragged)

    def expanded(self, row: int) -> Tensor:
        """Return a whole sequence's attention with a key and a value of its own for each head, in float64."""
        q, latent, k = (x.double() for x in self.tokens[row])
        heads, _, nope, _, _ = self.sizes
        cos, sin = self.cos_sin[: len(q)].double().chunk(2, dim=1)

        def turned(x: Tensor) -> Tensor:
            x1, x2 = x.chunk(2, dim=-1)
            return torch.cat((x1 * cos[:, None] - x2 * sin[:, None], x2 * cos[:, None] + x1 * sin[:, None]), dim=-1)

        own = torch.einsum("lr,hrp->lhp", latent, self.key_up.double())
        keys = torch.cat((own, turned(k[:, None]).expand(-1, heads, -1)), dim=-1)
        values = torch.einsum("lr,hvr->lhv", latent, self.value_up.double())
        queries = torch.cat((q[..., :nope], turned(q[..., nope:])), dim=-1)
        scores = torch.einsum("nhd,lhd->hnl", queries, keys) * self.args.scale
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        return torch.einsum("hnl,lhv->nhv", scores.masked_fill(hidden, float("-inf")).softmax(-1), values)


class Step(NamedTuple):
    """Inputs of one step."""

    q: Tensor
    latent: Tensor
    k: Tensor
    positions: Tensor
    slots: Tensor
    ragged: ops.RaggedBatch
