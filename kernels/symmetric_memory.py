"""SymmetricSums: small sums over the GPUs of one machine, by one kernel that reads the other GPUs' memory itself.

Memory and kernel are torch's (torch.distributed._symmetric_memory, which is not public). The kernel adds float32 in the
order of the ranks, whatever the number of rows. No card has run it here.
"""

import itertools
import os
from typing import Any

import torch
from torch import Tensor

# Largest sum: 64 tokens of 4096 in float32. Every GPU reads all of it from each other one. Not measured.
MAX_BYTES = 2**20
_NUM_RANKS = (2, 4, 8)  # the kernel adds other numbers of ranks to 0.0, so a -0.0 would be lost
_OLDEST_TORCH = (2, 11)  # older ones find a group's store through torch's global group
_NUMBERS = itertools.count()


def missing(num_ranks: int) -> str | None:
    """Return what these sums need and this machine lacks, None if nothing. All ranks' GPUs must be visible."""
    if num_ranks not in _NUM_RANKS:
        return f"2, 4 or 8 GPUs, not {num_ranks}"
    if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST_TORCH:
        return f"torch 2.11 or newer, not {torch.__version__}"
    pairs = itertools.permutations(range(num_ranks), 2)
    blind = next((pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)), None)
    return f"GPUs that read each other's memory, which {blind[0]} and {blind[1]} do not" if blind else None


class SymmetricSums:
    """One rank's buffer. Like ProcessGroup: equal calls in one order, queued on the current stream.

    The kernel waits for the other ranks without end: it cannot be aborted as NCCL can.
    """

    def __init__(self, store: Any, *, rank: int, num_ranks: int, device: torch.device) -> None:
        """Meet the other ranks through torch's `store`. Raises RuntimeError if a GPU's memory cannot be shared."""
        import torch.distributed as dist

        number = next(_NUMBERS)
        if number and device.type == "cuda":  # torch names its meetings by a count, which other ranks' must equal
            raise RuntimeError("symmetric memory is for one engine of a process; the backend nccl sums for any number")
        c10d: Any = torch._C._distributed_c10d
        # Each rank sees its GPU as device 0, which torch takes for one GPU of all ranks.
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        self._name: Any = f"splitfuse-{number}"
        self._group = dist.ProcessGroup(store, rank, num_ranks)  # torch looks the store up by this group's name
        c10d._register_process_group(self._name, self._group)
        memory = c10d._SymmetricMemory
        self._buffer: Tensor = memory.empty_strided_p2p((MAX_BYTES // 4,), (1,), torch.float32, device)
        memory.rendezvous(self._buffer, self._name)

    def can_sum(self, x: Tensor) -> bool:
        """True if x is small enough."""
        return x.numel() <= self._buffer.numel()

    def sum(self, x: Tensor) -> Tensor:
        """Sum contiguous x [T, W] over all ranks, in float32, rounded once: [T, W] with the same bits on every rank."""
        terms = self._buffer[: x.numel()].view(x.shape)
        terms.copy_(x)  # safe: the kernel before has ended, which waits until all ranks have read
        total: Tensor = torch.ops.symm_mem.one_shot_all_reduce(terms, "sum", self._name)
        return total.to(x.dtype)
