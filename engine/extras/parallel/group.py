"""Group: how the ranks of a tensor-parallel model meet; their GPUs: each rank has one, and sees no other."""

import os
from typing import Any, NamedTuple

import torch

from ....kernels import ops
from ...errors import ConfigError
from ...execution.models.tensor_parallel import TensorParallel


class Group(NamedTuple):
    """Description of a group, which every rank of it has."""

    backend: str  # name for `ops.rank_group`
    size: int
    num_slices: int
    in_order: bool

    def join(self, memory: int, *, rank: int, limit_s: float) -> TensorParallel:
        """Return a rank's end of the group; its group is None without a native library.

        `memory`: as in `ops.rank_group`. `limit_s`: as in RankGroup.
        """
        group: Any = ops.rank_group(
            memory, rank=rank, num_ranks=self.size, limit_s=limit_s, backend=self.backend, in_order=self.in_order
        )
        return TensorParallel(rank=rank, size=self.size, num_slices=self.num_slices, group=group)

    def to_arguments(self) -> list[str]:
        """Write the group for a command line."""
        return [str(int(field)) if isinstance(field, bool) else str(field) for field in self]

    @classmethod
    def of_arguments(cls, arguments: list[str]) -> "Group":
        """Read what `to_arguments` has written."""
        backend, size, num_slices, in_order = arguments
        return cls(backend, int(size), int(num_slices), bool(int(in_order)))


def check_gpus(size: int) -> None:
    """Raise ConfigError if this machine cannot run so many ranks on GPUs."""
    import torch.distributed as dist

    if size == 1:
        return
    setting = f"--tensor-parallel-size {size}"
    if not (dist.is_available() and dist.is_nccl_available()):
        raise ConfigError(
            f"{setting} on GPUs needs NCCL, which torch {torch.__version__} lacks; "
            "install a torch for Linux that is built for CUDA, or leave it out"
        )
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    if len(names) < size:
        raise ConfigError(f"{setting} needs {size} GPUs, torch sees {len(names)}; lower it, or --device cpu works")
    if len(set(names[:size])) > 1:
        raise ConfigError(
            f"{setting}: the first {size} GPUs differ ({', '.join(dict.fromkeys(names[:size]))}); "
            "CUDA_VISIBLE_DEVICES chooses GPUs that are alike"
        )


def environment(rank: int) -> dict[str, str]:
    """Return the variable that leaves a rank its GPU alone, as device 0.

    So threads that compile kernels or read weights, whose current device is 0, use that GPU. NCCL copies between GPUs
    that their processes do not see.
    """
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return {"CUDA_VISIBLE_DEVICES": visible[rank] if visible else str(rank)}
