"""The block that is evicted is the one of a plain search over all tenants; floors hold whatever happens."""

import random
from collections import Counter

import pytest

from splitfuse.engine.core.cache_shares import CacheShares


class Search:
    """CacheShares without heaps. Blocks are in order of when they came free."""

    def __init__(self, num_blocks: int, weights: dict[str, float]) -> None:
        self._num_blocks = num_blocks
        self._weights = weights
        self.tenant_of: dict[int, str] = {}
        self.free: dict[int, None] = {}

    def floors(self) -> dict[str, float]:
        """In blocks."""
        weights = {tenant: self._weights.get(tenant, 1.0) for tenant in self.tenant_of.values()}
        return {tenant: 0.5 * self._num_blocks * w / sum(weights.values()) for tenant, w in weights.items()}

    def next_evicted(self) -> set[int]:
        """More than one where several tenants have as much by their weights."""
        floors, counts = self.floors(), Counter(self.tenant_of.values())
        above = [block for block in self.free if counts[tenant := self.tenant_of[block]] > floors[tenant] + 1e-9]
        if above:
            return {above[0]}
        oldest = {tenant: block for block in reversed(self.free) for tenant in [self.tenant_of[block]]}
        levels = {tenant: counts[tenant] / self._weights.get(tenant, 1.0) for tenant in oldest}
        return {block for tenant, block in oldest.items() if levels[tenant] == max(levels.values())}


class Life:
    """Blocks are cached, used, freed and evicted at random, in both."""

    def __init__(self, seed: int, *, num_blocks: int, num_tenants: int) -> None:
        self._rng = random.Random(seed)
        weights = {f"t{i}": self._rng.choice([0.5, 2.0, 4.0]) for i in range(0, num_tenants, 3)}
        self._shares, self._search = CacheShares(num_blocks, weights), Search(num_blocks, weights)
        self._num_tenants = num_tenants
        self._empty, self._used = list(range(num_blocks)), list[int]()
        self._change()
        self.seen: Counter[str] = Counter()

    def run(self, num_steps: int) -> None:
        """Make this many changes, and check after each change."""
        for step in range(num_steps):
            if step % 200 == 0:
                self._change()
            self._step()
            self._shares.check(self._search.tenant_of, self._search.free.__contains__)

    def _change(self) -> None:
        """Tenants that are there, and the share of the pool in use."""
        rng, number = self._rng, self._num_tenants
        self._active = [f"t{rng.randrange(number)}" for _ in range(rng.choice([1, 3, number]))]
        self._pressure = rng.random()

    def _step(self) -> None:
        rng = self._rng
        if self._used and rng.random() < 0.5 - 0.4 * self._pressure:
            self._give_back(self._used.pop(rng.randrange(len(self._used))), is_good=rng.random() < 0.95)
        elif self._search.free and rng.random() < 0.2:
            block = rng.choice(list(self._search.free))
            (self._use if rng.random() < 0.8 else self._forget)(block)
        elif self._empty or self._search.free:
            if not self._empty:
                self._evict()
            self._cache(self._empty.pop(), rng.choice(self._active))

    def _give_back(self, block: int, *, is_good: bool) -> None:
        if is_good:
            self._shares.free(block)
            self._search.free[block] = None
        else:
            self._forget(block)

    def _use(self, block: int) -> None:
        self._shares.use(block)
        del self._search.free[block]
        self._used.append(block)

    def _cache(self, block: int, tenant: str) -> None:
        self._shares.add(block, tenant)
        self._search.tenant_of[block] = tenant
        self._used.append(block)

    def _evict(self) -> None:
        block, search = self._shares.next_evicted(), self._search
        assert block in search.next_evicted()
        tenant = search.tenant_of[block]
        is_above = Counter(search.tenant_of.values())[tenant] > search.floors()[tenant]
        self.seen["above its floor" if is_above else "at its floor"] += 1
        self._use(block)
        self._forget(self._used.pop())

    def _forget(self, block: int) -> None:
        self._shares.remove(block)
        del self._search.tenant_of[block]
        self._search.free.pop(block, None)
        self._empty.append(block)


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_block_that_a_plain_search_finds(seed: int) -> None:
    life = Life(seed, num_blocks=60, num_tenants=[2, 5, 40][seed % 3])
    life.run(3000)
    assert life.seen["above its floor"] > 100
    assert life.seen["at its floor"] > 0


def fill(shares: CacheShares, tenant: str, blocks: range) -> None:
    for block in blocks:
        shares.add(block, tenant)
        shares.free(block)


def evict(shares: CacheShares) -> int:
    block = shares.next_evicted()
    shares.use(block)
    shares.remove(block)
    return block


def test_a_flood_leaves_the_others_their_floors() -> None:
    shares = CacheShares(100, {"half": 0.5})
    fill(shares, "quiet", range(10))
    fill(shares, "half", range(10, 30))
    fill(shares, "loud", range(30, 100))
    counts = Counter({"quiet": 10, "half": 20, "loud": 70})
    for _ in range(500):
        block = evict(shares)
        fill(shares, "loud", range(block, block + 1))
    counts = Counter(holding.tenant for holding in shares._holding_of.values())
    assert counts == {"quiet": 10, "half": 10, "loud": 80}, "the floors are 20, 10 and 20"


def test_above_the_floors_the_least_recently_used_goes() -> None:
    shares = CacheShares(8)
    fill(shares, "a", range(4))
    fill(shares, "b", range(4, 8))
    assert [evict(shares) for _ in range(4)] == [0, 1, 4, 5]


def test_a_tenant_that_comes_back_after_many_others_keeps_most() -> None:
    """Floors of tenants that never return take half of the cache at most."""
    shares = CacheShares(1000)
    fill(shares, "once", range(950))
    fill(shares, "regular", range(950, 1000))
    kept = []
    for turn in range(100):
        for guest in range(20):
            for _ in range(10):
                fill(shares, f"{turn} {guest}", range(block := evict(shares), block + 1))
        kept.append(sum(holding.tenant == "regular" for holding in shares._holding_of.values()))
        missing = 50 - kept[-1]
        for block in [block for block, holding in shares._holding_of.items() if holding.tenant == "regular"]:
            shares.use(block)
            shares.free(block)
        for _ in range(missing):
            fill(shares, "regular", range(block := evict(shares), block + 1))
    assert min(kept) == 50


def test_it_remembers_nothing_of_tenants_that_are_gone() -> None:
    shares = CacheShares(10)
    fill(shares, "0", range(10))
    for number in range(2000):
        fill(shares, str(number), range(block := evict(shares), block + 1))
    assert len(shares._holdings) <= 10
    assert len(shares._candidates) + len(shares._protected) <= 2 * 10 + 65
    for block in range(10):
        shares.remove(block)
    assert not any(entry[-1].free for entry in (*shares._candidates, *shares._protected)), "each is dropped when seen"
