"""RankGroup: sums over the ranks of a tensor-parallel model, which are processes, through shared memory."""

import mmap
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import build

# Values of ranks.cpp. An area holds one row of a vocabulary of 500,000 in float32, or 512 rows of 1024 elements.
_HEADER = 4096
_AREA_BYTES = 2 * 2**20
_STOPPED = -1


class RankGroup:
    """One rank's end of the group. All ranks make equal calls in one order. For one thread, except `stop`."""

    def __init__(self, memory: int, *, rank: int, num_ranks: int, limit_s: float) -> None:
        """`memory`: descriptor of the ranks' empty file. `limit_s`: longest wait for another rank, 0: forever."""
        library = build.library()
        assert library is not None, "`ops.rank_group` has looked"
        self._library = library
        num_bytes = _HEADER + 2 * num_ranks * _AREA_BYTES  # zeros at first
        os.ftruncate(memory, num_bytes)
        self._memory = torch.frombuffer(mmap.mmap(memory, num_bytes), dtype=torch.uint8)
        self._state = torch.zeros(2, dtype=torch.int64)
        self._fields: dict[str, Any] = {
            "shared": self._memory, "state": self._state, "rank": rank, "num_ranks": num_ranks,
            "capacity": _AREA_BYTES, "limit_ns": int(limit_s * 1e9),
        }  # fmt: skip

    def sum(self, partials: Tensor, *, width: int) -> Tensor:
        """Sum partials [T, P · width] over all ranks and their P parts, in order: [T, width], rounded once.

        The bits are equal on every rank and for any split of the parts over ranks.
        """
        partials = partials.contiguous()
        assert partials.shape[1] * partials.dtype.itemsize <= _AREA_BYTES
        out = partials.new_empty(len(partials), width)
        self._library[f"sum_ranks_{build.DTYPES[partials.dtype]}"](
            partials=partials, out=out, num_rows=len(out), width=width, num_partials=partials.shape[1] // width,
            **self._fields,
        )  # fmt: skip
        return out

    def gather(self, x: Tensor, widths: Sequence[int], *, wanted: bool = True) -> Tensor:
        """Concatenate all ranks' columns x [T, widths[rank]]: [T, sum of widths]; x if the result is not `wanted`."""
        x = x.contiguous()
        starts = torch.tensor([0, *widths]).cumsum(0) * x.dtype.itemsize
        assert max(widths) * x.dtype.itemsize <= _AREA_BYTES
        out = x.new_empty(len(x), sum(widths)) if wanted else None
        self._library["gather_ranks"](x=x, out=out, starts=starts, num_rows=len(x), **self._fields)
        return x if out is None else out

    def broadcast(self, x: Tensor) -> Tensor:
        """Return rank 0's x; the other ranks' have the same shape and dtype."""
        rank, flat = self._fields["rank"], x[:, None].flatten(1)
        widths = [flat.shape[1], *[0] * (self._fields["num_ranks"] - 1)]
        found = self.gather(flat[:, : widths[rank]], widths, wanted=rank > 0)
        return found.view_as(x) if rank else x

    def connect(self) -> None:
        """Do nothing: the ranks meet in their memory."""

    def failure(self) -> str | None:
        """Return the reason why results are invalid, None if all are valid. After a failure no call waits."""
        reason = int(self._state[1])
        if not reason:
            return None
        return "the exchange was stopped" if reason == _STOPPED else f"rank {reason - 1} does not answer"

    def stop(self) -> None:
        """Make all ranks stop waiting, now and later. Callable from any thread."""
        self._memory[:8].view(torch.int64).fill_(_STOPPED)
