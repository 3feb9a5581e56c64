"""TensorParallel: one rank's share of a model, and the sums over all ranks (Shoeybi et al. 2019).

A dimension is cut into `num_slices` equal slices; neighbouring slices make up a rank's share. A sum adds slices, not
ranks, in one order: for equal slices, any number of ranks gives the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight
from ...errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TensorParallel:
    """One of `size` ranks. Methods that cut a dimension raise ConfigError if it cannot be divided."""

    rank: int = 0
    size: int = 1
    num_slices: int = 1  # over all ranks, a multiple of `size`
    group: Any = None  # from `ops.rank_group`; None where there is one slice

    @property
    def is_whole(self) -> bool:
        """True if no dimension is cut."""
        return self.num_slices == 1

    def share(self, total: int, *, unit: int = 1) -> slice:
        """Return this rank's part of a dimension, in whole units (a head's rows)."""
        what = "num_attention_heads" if unit > 1 else "the width"
        self._divide(total // unit, self.size, f"{what} {total // unit}", "tensor_parallel_size")
        return slice(total // self.size * self.rank, total // self.size * (self.rank + 1))

    def slices(self, total: int) -> list[slice]:
        """Return this rank's slices of a dimension."""
        self._divide(total, self.num_slices, f"the width {total}", "tensor_parallel_slices")
        width, count = total // self.num_slices, self.num_slices // self.size
        first = self.rank * count
        return [slice(width * number, width * (number + 1)) for number in range(first, first + count)]

    def _divide(self, total: int, parts: int, what: str, setting: str) -> None:
        if total % parts:
            raise ConfigError(f"{what} of this model cannot be divided by {setting} {parts}; choose another number")

    def kv_heads(self, num_kv_heads: int) -> slice:
        """Return the KV heads that this rank's query heads read; with more ranks than KV heads, ranks share one."""
        if num_kv_heads % self.size and self.size % num_kv_heads:
            raise ConfigError(
                f"num_key_value_heads {num_kv_heads} cannot be divided by tensor_parallel_size {self.size}, "
                "nor the other way round"
            )
        first = num_kv_heads * self.rank // self.size
        return slice(first, first + max(1, num_kv_heads // self.size))

    def qkv_rows(self, num_heads: int, num_kv_heads: int, head_dim: int) -> list[slice]:
        """Return this rank's rows of the stacked matrix of queries, keys and values."""
        q_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
        queries, heads = self.share(q_size, unit=head_dim), self.kv_heads(num_kv_heads)
        kv = slice(heads.start * head_dim, heads.stop * head_dim)
        return [queries, _shift(kv, q_size), _shift(kv, q_size + kv_size)]

    def gate_up_rows(self, inner: int) -> list[slice]:
        """Return this rank's rows of the stacked matrix of gate and up."""
        rows = self.share(inner)
        return [rows, _shift(rows, inner)]

    def vocabulary(self, size: int) -> slice:
        """Return this rank's rows of the embedding and of the head."""
        return self._vocabulary_of(size, self.rank)

    def _vocabulary_of(self, size: int, rank: int) -> slice:
        return slice(size * rank // self.size, size * (rank + 1) // self.size)

    def sum(self, partials: Sequence[Tensor]) -> Tensor:
        """Sum the partial results of all ranks' slices; `partials` has [T, width] for each slice of this rank."""
        if self.group is None:
            return partials[0]
        terms = partials[0] if len(partials) == 1 else torch.cat(list(partials), dim=1)
        total: Tensor = self.group.sum(terms, width=partials[0].shape[1])
        return total

    def embed(self, lookup: Any, token_ids: Tensor, *, vocab_size: int) -> Tensor:
        """Look up rows of a table that is split by `vocabulary`; `lookup` reads this rank's part.

        Rank 0 alone may know the ids: the last step has sampled some of them there.
        """
        token_ids = self.group.broadcast(token_ids)
        rows = self.vocabulary(vocab_size)
        places = token_ids - rows.start
        is_elsewhere = (places < 0) | (places >= rows.stop - rows.start)
        x = lookup(places.masked_fill(is_elsewhere, 0))
        x.masked_fill_(is_elsewhere[:, None], 0.0)
        total: Tensor = self.group.sum(x, width=x.shape[1])  # x + 0 changes no bits
        return total

    def gather_logits(self, logits: Tensor, *, vocab_size: int) -> Tensor:
        """Gather the whole vocabulary's logits on rank 0; other ranks return their own part."""
        if self.size == 1:
            return logits
        parts = [self._vocabulary_of(vocab_size, rank) for rank in range(self.size)]
        widths = [part.stop - part.start for part in parts]
        gathered: Tensor = self.group.gather(logits, widths, wanted=self.rank == 0)
        return gathered

    def gather_heads(self, heads: Tensor, *, num_heads: int) -> Tensor:
        """All-gather attention heads: [T, heads, D] of each rank -> [T, num_heads, D] on every rank."""
        flat = heads.flatten(1)
        whole: Tensor = self.group.gather(flat, [flat.shape[1]] * self.size).view(len(heads), -1, heads.shape[2])
        copies = whole.shape[1] // num_heads  # copies of a KV head, if there are fewer heads than ranks
        return whole if copies == 1 else whole[:, ::copies].contiguous()


SINGLE_RANK = TensorParallel()


def take_rows(weight: Any, rows: Sequence[slice]) -> list[Any]:
    """Return these rows of a Tensor or QuantizedWeight, one piece for each slice."""
    return [weight.rows(part) if isinstance(weight, QuantizedWeight) else weight[part] for part in rows]


def rows_of_parts(rows: Sequence[slice], sizes: Sequence[int]) -> list[list[slice]]:
    """Split rows of a stack of matrices of these heights into the rows of each matrix."""
    rows_of_part, start = [], 0
    for size in sizes:
        inside = [slice(max(part.start - start, 0), min(part.stop - start, size)) for part in rows]
        rows_of_part.append([part for part in inside if part.start < part.stop])
        start += size
    return rows_of_part


def _shift(rows: slice, distance: int) -> slice:
    return slice(rows.start + distance, rows.stop + distance)
