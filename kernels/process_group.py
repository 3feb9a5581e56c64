"""ProcessGroup: sums over the ranks of a tensor-parallel model through torch.distributed: NCCL on GPUs, gloo on a CPU.

It has the interface of RankGroup (cpu/rank_group.py). It leaves torch's global group to the program around this one.
"""

import contextlib
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Longest wait for another rank, between the loading of the weights and the last step: kernels are compiled meanwhile.
# NCCL notices it in steps without a graph only; a rank that ends is noticed at once (rank_processes.py).
_LIMIT = timedelta(seconds=300)
_HOST = "127.0.0.1"
# NCCL's own sockets stay on this machine. Torch must not end rank 0 by SIGABRT when a rank is lost: it says why.
_ENVIRONMENT = {"NCCL_SOCKET_IFNAME": "lo"}
_OF_RANK_0 = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}


class ProcessGroup:
    """One rank's end of the group. All ranks make equal calls in one order. For one thread, except `stop`.

    On a GPU calls are queued on the current stream like kernels, so graphs capture them.
    """

    def __init__(self, memory: int, *, backend: str, rank: int, num_ranks: int, in_order: bool) -> None:
        """`memory`: descriptor of the empty file in which the ranks meet. `backend`: nccl or gloo.

        `in_order`: sums add the ranks' parts one after the other, so that their bits depend on nothing else. NCCL
        chooses an order by the number of bytes; of two parts there is only one.
        """
        self._store = os.dup(memory)
        self._backend, self._rank, self._num_ranks, self._in_order = backend, rank, num_ranks, in_order
        self._group: Any = None
        self._dist: Any = None
        self._is_stopped = False

    def connect(self) -> None:
        """Meet the other ranks, once all of them call this. Raises RuntimeError if they do not meet."""
        import torch.distributed as dist  # here: torch may be built without it

        if self._num_ranks == 1:
            return
        self._dist = dist.distributed_c10d
        file_store: Any = dist.FileStore  # type: ignore[attr-defined]
        store = file_store(f"/proc/self/fd/{self._store}", self._num_ranks)
        if self._backend == "gloo":
            gloo = dist.ProcessGroupGloo
            options = gloo._Options()  # type: ignore[attr-defined]
            options._devices, options._timeout = [gloo.create_device(hostname=_HOST)], _LIMIT
            self._group = gloo(store, self._rank, self._num_ranks, options)
        else:
            for name, value in {**_ENVIRONMENT, **(_OF_RANK_0 if self._rank == 0 else {})}.items():
                os.environ.setdefault(name, value)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = _LIMIT
            self._group = dist.ProcessGroupNCCL(store, self._rank, self._num_ranks, options)
        # The first exchange makes NCCL's communicator, which a graph's capture must not do.
        met = torch.ones(1, device="cuda" if self._backend == "nccl" else "cpu")
        self._add(met)
        if int(met) != self._num_ranks:
            raise RuntimeError(f"{int(met)} of {self._num_ranks} ranks have met")

    def sum(self, partials: Tensor, *, width: int) -> Tensor:
        """Sum partials [T, P · width] over all ranks and their P parts: [T, width]. May overwrite `partials`."""
        partials = partials.contiguous()
        if partials.shape[1] == width and not self._in_order:
            self._add(partials)
            return partials
        sizes = [width] * (partials.shape[1] // width)
        terms = [term for part in self._of_all(partials) for term in part.split_with_sizes(sizes, dim=1)]
        total: Tensor = terms[0].float()
        for term in terms[1:]:
            total += term
        return total.to(partials.dtype)

    def gather(self, x: Tensor, widths: Sequence[int], *, wanted: bool = True) -> Tensor:
        """Concatenate all ranks' columns x [T, widths[rank]]: [T, sum of widths]; x if the result is not `wanted`."""
        parts = self._of_all(F.pad(x, (0, max(widths) - x.shape[1])))
        if not wanted:
            return x
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)

    def broadcast(self, x: Tensor) -> Tensor:
        """Return rank 0's x, which is written to the other ranks' x of the same shape and dtype."""
        if self._group is not None:
            _wait(self._group.broadcast([x], _now(self._dist.BroadcastOptions())))
        return x

    def failure(self) -> str | None:
        """Return the reason why results are invalid, None if all are valid."""
        return "the exchange was stopped" if self._is_stopped else None

    def stop(self) -> None:
        """Make this rank stop waiting, now and later. Callable from any thread."""
        if self._is_stopped:
            return
        self._is_stopped = True
        with contextlib.suppress(RuntimeError):  # gloo has no abort: it fails when the other ranks end
            if self._group is not None:
                self._group.abort()

    def _add(self, x: Tensor) -> None:
        if self._group is not None:
            _wait(self._group.allreduce([x], _now(self._dist.AllreduceOptions())))

    def _of_all(self, x: Tensor) -> Tensor:
        """All-gather x [T, W] of equal shape on all ranks → [ranks, T, W]."""
        if self._group is None:
            return x[None]
        options = _now(self._dist.AllgatherOptions())
        found = x.new_empty(self._num_ranks, *x.shape)
        _wait(self._group._allgather_base(found.flatten(0, 1), x.contiguous(), options))
        return found


def _now(options: Any) -> Any:
    """Let an exchange be queued on the current stream, not on one of NCCL's own."""
    options.asyncOp = False
    return options


def _wait(work: Any) -> None:
    if work is not None:  # None where it is queued on the current stream
        work.wait()
