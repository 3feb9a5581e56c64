"""Checkpoints: recurrent states that are kept for later requests, and the order in which they are evicted.

    rank = rank of the last evicted checkpoint + tokens to compute again without this one

The lowest rank goes first (GreedyDual-Size, Cao and Irani 1997): tokens saved for the same memory, and recency, because
a hit gives a checkpoint a new rank and every eviction lowers the old ones. Marconi (Pan et al. 2024, arXiv 2411.19379)
weighs both, too, with a factor to be tuned. Tenants are protected as in core/cache_shares.py: below half of its share a
tenant loses nothing to others. Knows no tokens and no references.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

_SHARE_KEPT = 0.5
_FEW_ENTRIES = 64  # too few to clean up


# Hit rate of chats on 62 slots: 64.3 % with equal weights, 70.1 % with weight 1/16 inside prompts, 78.6 % if a used end
# of a turn drops to 1/16 too.
_TURNS_PER_BRANCH = 16


def worth_to_branches(num_tokens: int) -> int:
    """Return the gain of a state that is of use to branches alone."""
    return -(-num_tokens // _TURNS_PER_BRANCH)


@dataclass(eq=False, slots=True)
class Checkpoint:
    """State of a slot, found by its key, the cached block whose last token it follows, or by its one user."""

    key: Hashable
    slot: int
    tenant: str
    gain: int  # tokens to compute again without it
    is_end: bool = False  # end of an output, from which a next turn goes on
    num_hits: int = 0
    rank: float = 0.0


class Checkpoints:
    """Map of keys to checkpoints, and a heap of their ranks. Knows which is next, evicts none by itself."""

    def __init__(self, num_slots: int, weights: Mapping[str, float] | None = None) -> None:
        """`weights`: of tenants that share `num_slots`; 1 for all others."""
        self._num_slots = num_slots
        self._weights = dict(weights or {})
        self._of_key: dict[Hashable, Checkpoint] = {}
        self._counts = Counter[str]()  # by tenant
        self._heap: list[tuple[float, int, Checkpoint]] = []  # every checkpoint has an entry of its rank
        self._num_entries = 0  # so far: a tie-breaker, first in, first out
        self._level = 0.0  # rank of the last evicted one
        self.num_evictions = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._of_key

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._of_key.values())

    def __len__(self) -> int:
        return len(self._of_key)

    def get(self, key: Hashable) -> Checkpoint | None:
        """Return the checkpoint of a key."""
        return self._of_key.get(key)

    def add(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint whose key has none."""
        assert checkpoint.key not in self._of_key
        self._of_key[checkpoint.key] = checkpoint
        self._counts[checkpoint.tenant] += 1
        self._rank(checkpoint)

    def use(self, key: Hashable) -> None:
        """Count a hit."""
        checkpoint = self._of_key[key]
        checkpoint.num_hits += 1
        self._rank(checkpoint)

    def supersede(self, checkpoint: Checkpoint) -> None:
        """Note that a request which began with the checkpoint has one behind it, too.

        The expected next turn has used this checkpoint; only branches can use it again.
        """
        if checkpoint.is_end and checkpoint.num_hits == 1 and self._of_key.get(checkpoint.key) is checkpoint:
            checkpoint.gain = worth_to_branches(checkpoint.gain)
            self._rank(checkpoint)

    def pop(self, key: Hashable) -> Checkpoint | None:
        """Remove the checkpoint of a key, if there is one."""
        checkpoint = self._of_key.pop(key, None)
        if checkpoint is not None:
            self._counts[checkpoint.tenant] -= 1
            if not self._counts[checkpoint.tenant]:
                del self._counts[checkpoint.tenant]
        return checkpoint

    def next_evicted(self, can_go: Callable[[Checkpoint], bool]) -> Checkpoint | None:
        """Return the next checkpoint to evict among the ones that `can_go` allows; None if it allows none."""
        floor = _SHARE_KEPT * self._num_slots / sum(self._weight(tenant) for tenant in self._counts or ("",))
        passed: list[tuple[float, int, Checkpoint]] = []
        chosen, protected = None, None
        while self._heap and chosen is None:
            entry = heappop(self._heap)
            checkpoint = entry[2]
            if self._is_stale(entry):
                continue
            passed.append(entry)
            if not can_go(checkpoint):
                continue
            if self._share(checkpoint) > floor:
                chosen = checkpoint
            elif protected is None or self._share(checkpoint) > self._share(protected):
                protected = checkpoint
        for entry in passed:
            heappush(self._heap, entry)
        chosen = chosen or protected
        if chosen is not None:
            self.num_evictions += 1
            self._level = max(self._level, chosen.rank)
        return chosen

    def check(self) -> None:
        """Prove that every checkpoint is counted, and would be found when it is the next one."""
        assert self._counts == Counter(checkpoint.tenant for checkpoint in self)
        current = {id(entry[2]) for entry in self._heap if not self._is_stale(entry)}
        assert all(id(checkpoint) in current for checkpoint in self), "a checkpoint would be overlooked"
        assert all(checkpoint.rank >= checkpoint.gain and math.isfinite(checkpoint.rank) for checkpoint in self)

    def _rank(self, checkpoint: Checkpoint) -> None:
        checkpoint.rank = self._level + checkpoint.gain
        if len(self._heap) > 2 * len(self._of_key) + _FEW_ENTRIES:
            self._heap = [entry for entry in self._heap if not self._is_stale(entry)]
            heapify(self._heap)
        self._num_entries += 1
        heappush(self._heap, (checkpoint.rank, self._num_entries, checkpoint))

    def _is_stale(self, entry: tuple[float, int, Checkpoint]) -> bool:
        rank, _, checkpoint = entry
        return self._of_key.get(checkpoint.key) is not checkpoint or rank != checkpoint.rank

    def _share(self, checkpoint: Checkpoint) -> float:
        return self._counts[checkpoint.tenant] / self._weight(checkpoint.tenant)

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)
