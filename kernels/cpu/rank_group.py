"""RankGroup: sums over the ranks of a tensor-parallel model, each of them a process, through memory that they share."""

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from . import build

# As in ranks.cpp. An area holds one row of a vocabulary of 500,000 in float32, or 512 of 1024 elements.
_HEADER = 4096
_AREA_BYTES = 2 * 2**20
_STOPPED = -1


def group_bytes(num_ranks: int) -> int:
    """Bytes of memory that the ranks of a group share, zeros at first."""
    return _HEADER + 2 * num_ranks * _AREA_BYTES


class RankGroup:
    """One rank's end. All ranks make the same calls in the same order; for one thread, apart from `stop`."""

    def __init__(self, memory: int, *, rank: int, num_ranks: int, limit_s: float) -> None:
        """`memory`: a file descriptor of `group_bytes`. `limit_s`: how long another rank is waited for, 0: forever."""
        library = build.library()
        assert library is not None, "`ops.rank_group` has looked"
        self._library = library
        self._memory = torch.frombuffer(mmap.mmap(memory, group_bytes(num_ranks)), dtype=torch.uint8)
        self._state = torch.zeros(2, dtype=torch.int64)
        self._fields = {
            "shared": self._memory, "state": self._state, "rank": rank, "num_ranks": num_ranks,
            "capacity": _AREA_BYTES, "limit_ns": int(limit_s * 1e9),
        }  # fmt: skip

    def sum(self, partials: Tensor, *, width: int) -> Tensor:
        """Σ over ranks of partials [T, P · width], and over their P parts, in order: [T, width], rounded once.

        The same bits on every rank, and the same for any split of the parts over ranks.
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
        """Each rank's columns x [T, widths[rank]] side by side: [T, sum of widths]; x where that is not `wanted`."""
        x = x.contiguous()
        starts = torch.tensor([0, *widths]).cumsum(0) * x.dtype.itemsize
        assert max(widths) * x.dtype.itemsize <= _AREA_BYTES
        out = x.new_empty(len(x), sum(widths)) if wanted else None
        self._library["gather_ranks"](x=x, out=out, starts=starts, num_rows=len(x), **self._fields)
        return x if out is None else out

    def failure(self) -> str | None:
        """Why what came since the beginning is not to be trusted; None if all is well. Once set, no call waits."""
        reason = int(self._state[1])
        if not reason:
            return None
        return "the exchange was stopped" if reason == _STOPPED else f"rank {reason - 1} does not answer"

    def stop(self) -> None:
        """Have no rank wait any longer, now or later. From any thread."""
        self._memory[:8].view(torch.int64).fill_(_STOPPED)
