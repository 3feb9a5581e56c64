"""BlockAllocator: which blocks of the KV cache are whose. Counts blocks and references; never sees a tensor."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence


class BlockAllocator:
    """Hands out block ids 0 .. num_blocks-1, each with a reference count; a block is free when its count is 0.

    Freed blocks go to the end of the queue, so that what was cached in them stays intact the longest.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0
        assert block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: deque[int] = deque(range(num_blocks))
        self._references = [0] * num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - len(self._free)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks. The caller has made sure that there are so many."""
        assert 0 <= count <= len(self._free), f"{count} blocks wanted, {len(self._free)} free: the plan was wrong"
        blocks = [self._free.popleft() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Give one reference to each block back."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is freed twice"
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)

    def check(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Prove that references equal the tables' entries and that free and used blocks are a partition."""
        held = Counter(block for table in block_tables for block in table)
        assert all(self._references[block] == held[block] for block in range(self.num_blocks)), "references != tables"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free queue twice"
        assert free == {block for block in range(self.num_blocks) if not held[block]}, "free and used overlap or leak"
