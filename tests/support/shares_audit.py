"""Audit of tenants' shares of the prefix cache, by the engine's maps before and after a decision."""

from collections import Counter

from splitfuse.engine.core.block_manager import BlockManager


class SharesAudit:
    """Audit that eviction takes no tenant below its floor while a tenant above its own has a free block."""

    def __init__(self, blocks: BlockManager, weights: dict[str, float] | None) -> None:
        self._blocks = blocks
        self._weights = weights or {}
        self._before: dict[int, str] = {}

    def before(self) -> None:
        """Record the state before a decision."""
        self._before = self._tenants()

    def check(self) -> None:
        """Check a decision. Floors can only have risen since `before`, because a decision caches no block."""
        after = self._tenants()
        if len(after) == len(self._before):
            return
        counts, floor, floor_before = Counter(after.values()), self._floor(after), self._floor(self._before)
        above = {
            tenant
            for block, tenant in after.items()
            if self._blocks.device.is_free(block) and counts[tenant] / self._weight(tenant) > floor + 1e-9
        }
        for tenant in {tenant for block, tenant in self._before.items() if block not in after}:
            at_the_last = (counts[tenant] + 1) / self._weight(tenant)
            assert at_the_last > floor_before - 1e-9 or above <= {tenant}, (
                f"{tenant} was left {counts[tenant]} cached blocks by a floor of {floor_before:g} times its weight, "
                f"while {above} are above theirs"
            )

    def _tenants(self) -> dict[int, str]:
        cache = self._blocks.cache
        return {} if cache is None else {block: holding.tenant for block, holding in cache.shares._holding_of.items()}

    def _floor(self, tenants: dict[int, str]) -> float:
        total = sum(map(self._weight, set(tenants.values())))
        return self._blocks.device.num_blocks / (2 * total) if total else 0.0

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)
