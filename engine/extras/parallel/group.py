"""Group: how the ranks of a tensor-parallel model meet."""

from typing import Any, NamedTuple

from ....kernels import ops
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
