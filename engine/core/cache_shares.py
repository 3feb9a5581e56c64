"""CacheShares: chooses the cached block to evict, so that one tenant's flood leaves other tenants' prefixes cached.

    floor of a tenant = half of num_blocks * its weight / the weights of all tenants with cached blocks

The least recently used block of all tenants above their floors goes. If none of these tenants has a free block, since
the rest of the pool is in use, a block of the tenant with most blocks by weight goes. Knows no tokens, no references.
"""

import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

# With whole shares, tenants that never return would leave a regular tenant only as much as one of them has. Measured:
# of 250 blocks of 10,000, used again after every 100 tenants that come once with 10 blocks each, all are found again;
# with whole shares 70 %.
_SHARE_KEPT = 0.5
_FEW_ENTRIES = 64  # too few to clean up


@dataclass(eq=False, slots=True)
class _Holding:
    """Cached blocks of one tenant. `free`: its blocks that are not in use, with the times at which they came free."""

    tenant: str
    number: int
    weight: float
    num_blocks: int = 0
    free: OrderedDict[int, int] = field(default_factory=OrderedDict)
    is_protected: bool = False  # at or below its floor when last looked at, and has got no block since

    @property
    def level(self) -> float:
        """Number of blocks by weight."""
        return self.num_blocks / self.weight

    def oldest(self) -> tuple[int, int]:
        """Return the free block that came free first, and the time."""
        return next(iter(self.free.items()))


class CacheShares:
    """Count of each tenant's cached blocks, and order of the free ones. A call costs O(log tenants)."""

    def __init__(self, num_blocks: int, weights: Mapping[str, float] | None = None) -> None:
        """`weights`: of tenants in a cache of `num_blocks`; 1 for all others."""
        self._num_blocks = num_blocks
        self._weights = dict(weights or {})
        self._holdings: dict[str, _Holding] = {}  # tenants with blocks
        self._holding_of: dict[int, _Holding] = {}  # by block
        self._total_weight = 0.0
        self._numbers = itertools.count()
        self._times = itertools.count()
        # Heaps. A holding with free blocks has an entry, at its place or before it. Candidates are ordered by the time
        # at which their oldest free block came free; protected holdings by level, the highest first.
        self._candidates: list[tuple[int, int, _Holding]] = []
        self._protected: list[tuple[float, int, _Holding]] = []

    def add(self, block: int, tenant: str) -> None:
        """Note that the block, which is in use, now holds a prefix of this tenant."""
        holding = self._holdings.get(tenant)
        if holding is None:
            holding = _Holding(tenant, next(self._numbers), self._weights.get(tenant, 1.0))
            self._holdings[tenant] = holding
            self._total_weight += holding.weight
        self._holding_of[block] = holding
        holding.num_blocks += 1
        if holding.is_protected:
            self._make_candidate(holding)

    def remove(self, block: int) -> None:
        """Note that the block, free or not, holds no prefix any more."""
        holding = self._holding_of.pop(block)
        holding.free.pop(block, None)  # else its entry would be looked at for as long as it is in a heap
        holding.num_blocks -= 1
        if not holding.num_blocks:
            del self._holdings[holding.tenant]
            self._total_weight = self._total_weight - holding.weight if self._holdings else 0.0

    def free(self, block: int) -> None:
        """Note that a cached block is in use no more."""
        holding = self._holding_of[block]
        holding.free[block] = next(self._times)
        if len(holding.free) == 1 and not holding.is_protected:
            self._make_candidate(holding)

    def use(self, block: int) -> None:
        """Note that a free cached block is in use again."""
        del self._holding_of[block].free[block]

    def next_evicted(self) -> int:
        """Return the free cached block to evict. There must be one."""
        if len(self._holdings) == 1:
            return next(iter(self._holdings.values())).oldest()[0]
        floor = self._floor()
        while self._protected and -self._protected[0][0] > floor:  # the floor has sunk
            self._make_candidate(heappop(self._protected)[2])
        holding = self._oldest_above(floor) or self._highest_protected()
        return holding.oldest()[0]

    def check(self, cached: Iterable[int], is_free: Callable[[int], bool]) -> None:
        """Prove that it counts the blocks of `cached`, and that no holding would be overlooked."""
        blocks, holdings = set(cached), self._holdings.values()
        assert blocks == self._holding_of.keys(), "cached blocks are not counted"
        counts = Counter(holding.tenant for holding in self._holding_of.values())
        assert counts == {holding.tenant: holding.num_blocks for holding in holdings}
        assert {block for holding in holdings for block in holding.free} == set(filter(is_free, blocks))
        assert math.isclose(self._total_weight, math.fsum(holding.weight for holding in holdings), abs_tol=1e-6)
        for holding in holdings:
            heap = self._protected if holding.is_protected else self._candidates
            first = min((entry[0] for entry in heap if entry[2] is holding), default=math.inf)
            if holding.free:
                place = -holding.level if holding.is_protected else holding.oldest()[1]
                assert first <= place, f"{holding} would be overlooked"

    def _floor(self) -> float:
        """Return the level up to which tenants are protected."""
        return _SHARE_KEPT * self._num_blocks / self._total_weight

    def _make_candidate(self, holding: _Holding) -> None:
        holding.is_protected = False
        if len(self._candidates) + len(self._protected) > 2 * len(self._holdings) + _FEW_ENTRIES:
            self._rebuild()
        elif holding.free:
            heappush(self._candidates, (holding.oldest()[1], holding.number, holding))

    def _rebuild(self) -> None:
        """Drop the entries of holdings that are gone or have another entry."""
        holdings = self._holdings.values()
        self._protected = [(-held.level, held.number, held) for held in holdings if held.is_protected]
        free = (held for held in holdings if held.free and not held.is_protected)
        self._candidates = [(held.oldest()[1], held.number, held) for held in free]
        heapify(self._protected)
        heapify(self._candidates)

    def _oldest_above(self, floor: float) -> _Holding | None:
        """Return the holding above its floor whose free block came free first. Protects holdings that are not above."""
        while self._candidates:
            time, number, holding = self._candidates[0]
            if not holding.free or holding.is_protected:
                heappop(self._candidates)
            elif time != holding.oldest()[1]:
                heapreplace(self._candidates, (holding.oldest()[1], number, holding))
            elif holding.level > floor:
                return holding
            else:
                heappop(self._candidates)
                holding.is_protected = True
                heappush(self._protected, (-holding.level, number, holding))
        return None

    def _highest_protected(self) -> _Holding:
        """Return the protected holding with free blocks that has most blocks by weight."""
        while True:
            level, number, holding = self._protected[0]
            if not holding.free or not holding.is_protected:
                heappop(self._protected)
                holding.is_protected = False
            elif -level != holding.level:
                heapreplace(self._protected, (-holding.level, number, holding))
            else:
                return holding
