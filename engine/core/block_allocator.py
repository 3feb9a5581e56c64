"""BlockAllocator: the blocks of the KV cache that are in use. Counts blocks and references; never sees a tensor."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from .prefix_cache import PrefixCache


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)


class BlockAllocator:
    """Pool of block ids 0 .. num_blocks-1, each with a reference count; a block is free when its count is 0.

    A free block in the prefix cache keeps its contents until no other block is free and it is the next to be evicted.
    """

    def __init__(self, num_blocks: int, block_size: int, cache: PrefixCache | None = None) -> None:
        assert num_blocks > 0
        assert block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._cache = cache
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # cached blocks last
        self._references = [0] * num_blocks
        self.num_evictions = 0  # cached blocks that got other contents

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks without a reference."""
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        """Number of blocks with a reference."""
        return self.num_blocks - len(self._free)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)  # not by the function above: called for each row of each step

    def is_free(self, block: int) -> bool:
        """True if the block has no reference."""
        return not self._references[block]

    def num_freed_by(self, table: Sequence[int], lost_tables: Sequence[Sequence[int]]) -> int:
        """Count the blocks of a table that would be free without `lost_tables`, which include the table."""
        lost = Counter(block for other in lost_tables for block in other)
        return sum(self._references[block] == lost[block] for block in table)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, without contents. The plan has made sure that they are free."""
        assert 0 <= count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free: the plan was wrong"
        return [self._take() for _ in range(count)]

    def _take(self) -> int:
        block = next(iter(self._free))
        if self._cache is not None and block in self._cache:  # then all free blocks are cached
            block = self._cache.shares.next_evicted()
            self._cache.shares.use(block)
            self._cache.forget(block)
            self.num_evictions += 1
        del self._free[block]
        self._references[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """Take one more reference to each of these blocks, free or not, with its contents."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
                if self._cache is not None:
                    self._cache.shares.use(block)
            self._references[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Give back one reference to each block of a table.

        The last block comes first, to be evicted first: it is the leaf of its chain, and a block without its parents
        cannot be found.
        """
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is freed twice"
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None
                if self._cache is not None and block in self._cache:
                    self._cache.shares.free(block)
                else:
                    self._free.move_to_end(block, last=False)  # nothing to find in it: used first

    def check(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Prove that references equal the tables' entries and that free and used blocks are a partition."""
        held = Counter(block for table in block_tables for block in table)
        assert {block: self._references[block] for block in held} == held, "references != tables"
        assert self._references.count(0) == len(self._free) == self.num_blocks - len(held), "blocks leak"
        assert held.keys().isdisjoint(self._free), "free overlaps"
        if self._cache is not None:
            self._cache.check(self.is_free)
