"""Stand-in on a CPU for torch's symmetric memory: it finds a group by its name, and adds what gloo gathers in order."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

_LIBRARY = torch.library.Library("symm_mem", "IMPL")
_GROUPS: dict[int, Any] = {}  # gloo's groups by the address of the buffer


class _Memory:
    @staticmethod
    def empty_strided_p2p(size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)

    @staticmethod
    def rendezvous(buffer: Tensor, name: Any) -> None:
        group: Any = dist.distributed_c10d._resolve_process_group(name)
        store = dist.PrefixStore("symmetric", group.get_group_store())
        _GROUPS[buffer.untyped_storage().data_ptr()] = dist.ProcessGroupGloo(store, group.rank(), group.size())


def _one_shot_all_reduce(terms: Tensor, kind: str, name: str) -> Tensor:
    assert (kind, terms.dtype, terms.is_contiguous()) == ("sum", torch.float32, True)
    group = _GROUPS[terms.untyped_storage().data_ptr()]
    of_all = [torch.empty_like(terms) for _ in range(group.size())]
    group.allgather([of_all], [terms]).wait()
    total = of_all[0]
    for term in of_all[1:]:
        total = total + term
    return total


def use_symmetric_memory(patch: pytest.MonkeyPatch) -> None:
    """Let SymmetricSums work between processes or threads on a CPU."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key("symm_mem::one_shot_all_reduce", "CPU"):
        _LIBRARY.impl("one_shot_all_reduce", _one_shot_all_reduce, "CPU")
    patch.setattr(torch._C._distributed_c10d, "_SymmetricMemory", _Memory)
