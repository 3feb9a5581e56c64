"""StateSlots: slots for recurrent states, in use or kept as checkpoints. Counts references; never sees a tensor.

    slots:       held by requests and rows in flight | kept as checkpoints alone | free
    on the host: one for each swapped request | free

A slot in use is never evicted. There are enough slots for all states that can be in use at once, and some more for
checkpoints. So a request always gets a slot, if need be from the least valuable checkpoint.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from ...core.block_allocator import BlockAllocator
from ...execution.models.state_slots import StateSpec
from .checkpoints import Checkpoint, Checkpoints


class StateSlots:
    """Pool of slots 0 .. num_slots-1, each with a reference count, and the pool of the host's slots."""

    def __init__(self, spec: StateSpec, weights: Mapping[str, float] | None = None) -> None:
        """`weights`: of the tenants that share the checkpoints."""
        self.num_slots = spec.num_slots
        self.checkpoints = Checkpoints(spec.num_slots, weights)
        self.host = BlockAllocator(spec.num_host, 1) if spec.num_host else None
        self._pool = BlockAllocator(spec.num_slots, 1)
        self._most_pending = spec.num_checkpoints
        self._num_pending = 0  # slots that rows in flight fill with checkpoints
        self._num_kept = Counter[int]()  # checkpoints of a slot

    @property
    def num_used(self) -> int:
        """Number of slots that hold a state: of a request, or as a checkpoint."""
        return self._pool.num_used_blocks

    def allocate(self) -> int:
        """Take a slot for a request's state."""
        while not self._pool.num_free_blocks:  # a slot may be several checkpoints
            evicted = self.checkpoints.next_evicted(lambda checkpoint: not self._is_in_use(checkpoint.slot))
            assert evicted is not None, "more states are in use than planned"
            self.forget(evicted.key)
        return self._pool.allocate(1)[0]

    def _is_in_use(self, slot: int) -> bool:
        return not self._pool.num_freed_by([slot], [[slot] * self._num_kept[slot]])

    def allocate_checkpoint(self) -> int | None:
        """Take a slot for a row in flight to fill with a checkpoint; None if such rows have all there are."""
        if self._num_pending >= self._most_pending:
            return None
        self._num_pending += 1
        return self.allocate()

    def end_pending(self, count: int) -> None:
        """Note that rows have filled that many slots of `allocate_checkpoint`, or failed."""
        self._num_pending -= count
        assert self._num_pending >= 0

    def share(self, slot: int) -> None:
        """Take one more reference to a slot."""
        self._pool.share([slot])

    def free(self, slot: int) -> None:
        """Give back a reference."""
        self._pool.free([slot])

    def keep(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Keep a state, and take over a reference to its slot; None if there is a checkpoint of its key already."""
        if checkpoint.key in self.checkpoints:
            return None
        self.checkpoints.add(checkpoint)
        self._num_kept[checkpoint.slot] += 1
        return checkpoint

    def forget(self, key: Hashable) -> None:
        """Drop a checkpoint, if there is one for this key."""
        checkpoint = self.checkpoints.pop(key)
        if checkpoint is not None:
            self._num_kept[checkpoint.slot] -= 1
            self.free(checkpoint.slot)

    def stats(self) -> dict[str, int]:
        """Return counts for /stats."""
        return {
            "num_state_slots": self.num_slots,
            "num_used_state_slots": self.num_used,
            "num_checkpoints": len(self.checkpoints),
            "num_evicted_checkpoints": self.checkpoints.num_evictions,
            "num_host_state_slots": 0 if self.host is None else self.host.num_blocks,
            "num_used_host_state_slots": 0 if self.host is None else self.host.num_used_blocks,
        }

    def check(self, held: Iterable[int], held_on_host: Iterable[int]) -> None:
        """Prove that each slot's references come from `held`, the states in use, and from checkpoints."""
        if self.host is not None:
            self.host.check([slot] for slot in held_on_host)
        self.checkpoints.check()
        self._pool.check([[slot] for slot in held] + [[checkpoint.slot] for checkpoint in self.checkpoints])
