"""Audit of blocks at every step, by the engine's maps and the model's memory, not by the engine's own checks."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from fake_model import BAD, FakeModel, entry, root

from splitfuse.engine.core.batch import Batch
from splitfuse.engine.core.block_allocator import BlockAllocator
from splitfuse.engine.core.block_manager import BlockManager
from splitfuse.engine.core.prefix_cache import PrefixCache
from splitfuse.engine.core.request import Request, Status
from splitfuse.engine.core.scheduler import Scheduler


class MemoryAudit:
    """Audit that blocks are free, used or cached, references are table entries, and a cached block matches its hash."""

    def __init__(self, blocks: BlockManager, model: FakeModel, *, tenants: Iterable[str], hash_is_weak: bool) -> None:
        self._blocks = blocks
        self._contents = None
        if blocks.cache is not None and not hash_is_weak:  # a weak hash stands for several contents
            self._contents = ContentsAudit(blocks.cache, model, tenants)

    def check_writes(self, batch: Batch) -> None:
        """Check before a step that every block it writes has one owner and cannot be found in the cache."""
        size, references = self._blocks.device.block_size, self._blocks.device._references
        cached = () if self._blocks.cache is None else self._blocks.cache._content
        targets = [to for _, to in chain(batch.moves.swap_in, batch.moves.copies)]
        for row in batch.rows:
            table = row.request.block_table
            assert len(table) * size >= row.end, f"{row.request} has no block for its last token"
            targets += table[row.start // size : (row.end - 1) // size + 1]
        for block in targets:
            assert references[block] == 1, f"block {block} is written and has {references[block]} references"
            assert block not in cached, f"block {block} is written and can be found"

    def check(self, scheduler: Scheduler) -> None:
        """Check after a step."""
        check_pool(
            self._blocks.device,
            [request.block_table for request in (*scheduler.running, *scheduler._finished_in_flight)],
        )
        if self._blocks.host is not None:
            check_pool(self._blocks.host, [request.host_block_table for request in scheduler.waiting])
        if self._contents is not None:
            self._contents.check()

    def check_lookup(self, request: Request, entries: Sequence[int]) -> None:
        """Check that the prefix cache finds all cached blocks of a waiting request with these entries."""
        is_fork = request.parent is not None and not request.num_output_tokens
        if self._contents is not None and request.status is not Status.RUNNING and not is_fork:
            self._contents.check_lookup(self._blocks, request, entries)

    def check_forgotten(self, tables: Iterable[Sequence[int]]) -> None:
        """Check that a failed request's blocks, which may be bad, cannot be found."""
        if self._blocks.cache is not None:
            found = self._blocks.cache._content.keys() & set(chain.from_iterable(tables))
            assert not found, f"blocks {sorted(found)} of a failed request can be found"

    def check_empty(self) -> None:
        """Check that no block is in use when no request is left."""
        for pool in (self._blocks.device, self._blocks.host):
            assert pool is None or pool.num_used_blocks == 0, f"{pool.num_used_blocks} blocks leaked"


def check_pool(pool: BlockAllocator, tables: Sequence[Sequence[int]]) -> None:
    """Check that free and used blocks are a partition, and a block's references are the table entries that name it."""
    references, free = pool._references, pool._free
    held = Counter(chain.from_iterable(tables))
    num_entries = sum(map(len, tables))
    # No count is negative, their sum is the number of entries, and each entry's is right: so the others are 0.
    assert min(references) >= 0, "a block was freed too often"
    assert sum(references) == num_entries, f"{sum(references)} references, {num_entries} table entries"
    for block, count in held.items():
        assert references[block] == count, f"block {block}: {references[block]} references, {count} table entries"
    assert len(free) + len(held) == pool.num_blocks, f"{len(free)} free + {len(held)} used != {pool.num_blocks}"
    assert held.keys().isdisjoint(free), "a block is free and used"


class ContentsAudit:
    """Audit of the prefix cache's hashes: their meanings, and the contents of their blocks."""

    def __init__(self, cache: PrefixCache, model: FakeModel, tenants: Iterable[str]) -> None:
        self._cache = cache
        self._model = model
        self._tenants = tuple(tenants)
        self._entries: dict[bytes, list[int]] = {}

    def check(self) -> None:
        """Check all blocks that can be found."""
        device, entries = self._model.device, self._entries
        for block, (key, parent, packed) in self._cache._content.items():
            held = device[block]
            if key not in entries:
                entries[key] = self._meaning(parent, array("i", packed), held)
            assert held == entries[key] or BAD in held, f"block {block} does not hold what its hash stands for"

    def check_lookup(self, blocks: BlockManager, request: Request, entries: Sequence[int]) -> None:
        """Check that all cached blocks of a request's tokens are found, up to the block of the last token."""
        size = blocks.device.block_size
        findable = {self._entries[key][-1] for key, _, _ in self._cache._content.values()}
        num_full = (request.num_tokens - 1) // size
        num_there = next((i for i in range(num_full) if entries[(i + 1) * size - 1] not in findable), num_full)
        num_found = len(blocks.find_prefix(request).blocks)
        assert num_found == num_there, f"{num_found} blocks of {request} are found, {num_there} are there"

    def _meaning(self, parent: bytes, token_ids: Sequence[int], held: list[int]) -> list[int]:
        """Return the entries of these tokens after the parent's; after a tenant's root, those of any block."""
        if parent in self._entries:
            return _entries(self._entries[parent][-1], token_ids)
        roots = [tenant for tenant in self._tenants if self._cache._root(tenant) == parent]
        assert roots, "a block is cached without its parent"
        meanings = [_entries(root(tenant), token_ids) for tenant in roots]
        return next((meaning for meaning in meanings if meaning == held), meanings[0])


def _entries(last: int, token_ids: Sequence[int]) -> list[int]:
    entries = []
    for token_id in token_ids:
        last = entry(last, token_id)
        entries.append(last)
    return entries
