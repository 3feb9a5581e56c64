"""BlockAllocator: which blocks of the KV cache are in use. Counts blocks and references; never sees a tensor."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from .prefix_cache import PrefixCache


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold this many tokens."""
    return -(-num_tokens // block_size)


class BlockAllocator:
    """Hands out block ids 0 .. num_blocks-1, each with a reference count; a block is free when its count is 0.

    A free block in the prefix cache keeps its contents until no other is free and it is the next to be evicted.
    """

    def __init__(self, num_blocks: int, block_size: int, cache: PrefixCache | None = None) -> None:
        assert num_blocks > 0
        assert block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._cache = cache
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # those in the prefix cache last
        self._references = [0] * num_blocks
        self.num_evictions = 0  # cached blocks that were given other contents

    @property
    def num_free_blocks(self) -> int:
        """Blocks without a reference."""
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        """Blocks with a reference."""
        return self.num_blocks - len(self._free)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)  # not the function above: this is called for each row of each step

    def is_free(self, block: int) -> bool:
        """Whether it has no reference."""
        return not self._references[block]

    def num_freed_by(self, table: Sequence[int], gone: Sequence[Sequence[int]]) -> int:
        """Blocks of the table that would be free without the tables in `gone`, of which it is the last."""
        lost = Counter(block for other in gone for block in other)
        return sum(self._references[block] == lost[block] for block in table)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, with no contents. The caller has made sure that there are so many."""
        assert 0 <= count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free: the plan was wrong"
        return [self._take() for _ in range(count)]

    def _take(self) -> int:
        block = next(iter(self._free))
        if self._cache is not None and block in self._cache:  # then every free one is
            block = self._cache.shares.next_evicted()
            self._cache.shares.use(block)
            self._cache.forget(block)
            self.num_evictions += 1
        del self._free[block]
        self._references[block] = 1
        return block

    def share(self, blocks: Iterable[int]) -> None:
        """Take one more reference to each block, free or not, with its contents."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
                if self._cache is not None:
                    self._cache.shares.use(block)
            self._references[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Give one reference to each block of a table back.

        Last block first: it is the leaf of its chain, and without its parents a block cannot be found.
        """
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is freed twice"
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None
                if self._cache is not None and block in self._cache:
                    self._cache.shares.free(block)
                else:
                    self._free.move_to_end(block, last=False)  # worth nothing, so used first

    def check(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Prove that references equal the tables' entries and that free and used blocks are a partition."""
        held = Counter(block for table in block_tables for block in table)
        assert all(self._references[block] == held[block] for block in range(self.num_blocks)), "references != tables"
        assert set(self._free) == {block for block in range(self.num_blocks) if not held[block]}, (
            "free overlaps or leaks"
        )
        if self._cache is not None:
            self._cache.check(self.is_free)
