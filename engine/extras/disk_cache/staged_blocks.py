"""StagedBlocks: companion of the block manager that finds blocks read from disk, and hands new ones to be written.

a prompt:  in blocks of the cache | in staged blocks, which get blocks of their own at admission | to compute
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...core.block_manager import BlockManager
from ...core.block_ports import BlockCompanion, Prefix
from ...core.prefix_cache import Entry
from ...core.request import Request
from .cache_bytes import Bytes


class Disk(Protocol):
    """Calls of the companion to the DiskCache."""

    @property
    def has_staged(self) -> bool: ...
    def staged_blocks(self, hashes: Sequence[bytes]) -> tuple[Bytes, ...]: ...
    def staged_state(self, block_hash: bytes) -> Bytes | None: ...
    def load(self, blocks: Sequence[int], contents: Sequence[Bytes], hashes: Sequence[bytes]) -> None: ...
    def load_state(self, slot: int, contents: Bytes, block_hash: bytes) -> None: ...
    def keep(self, block: int, entry: Entry, index: int, tenant: str, *, is_known: bool) -> None: ...
    def keep_state(self, entry: Entry, slot: int, *, tenant: str, gain: int, is_kept: Callable[[], bool]) -> None: ...
    def forget(self, hashes: Sequence[bytes], tenant: str) -> None: ...
    def check(self) -> None: ...


class StagedBlocks(BlockCompanion):
    """Companion of one block manager."""

    def __init__(self, disk: Disk, blocks: BlockManager) -> None:
        self._disk, self._blocks = disk, blocks
        # Calls of another companion for the states behind the blocks.
        self.staged_state, self.load_state, self.keep_state = disk.staged_state, disk.load_state, disk.keep_state

    @property
    def has_staged(self) -> bool:
        """True if anything that was read waits for its request."""
        return self._disk.has_staged

    def find_prefix(self, request: Request, prefix: Prefix) -> Prefix:
        first, size = len(prefix.blocks), self._blocks.device.block_size
        if prefix.copied is not None or not self.has_staged:
            return prefix
        staged = self._disk.staged_blocks(request.block_hashes[first : request.num_skippable_tokens // size])
        return Prefix((first + len(staged)) * size, prefix.blocks, staged=staged) if staged else prefix

    def admit(self, request: Request, prefix: Prefix, *, is_swapped: bool) -> None:
        self._keep(request, 0, len(prefix.blocks), is_known=True)

    def restore(self, request: Request, prefix: Prefix) -> None:
        """Give an admitted request blocks that are filled with its staged ones, unless it was on the host."""
        first = len(request.block_table)
        if not prefix.staged or first > len(prefix.blocks):
            return
        blocks = self._blocks.device.allocate(len(prefix.staged))
        request.block_table.extend(blocks)
        end = first + len(blocks)
        self._disk.load(blocks, prefix.staged, request.block_hashes[first:end])
        self._blocks.remember_blocks(request, first, end)

    def remember(self, request: Request, first: int, end: int) -> None:
        self._keep(request, first, end, is_known=False)

    def _keep(self, request: Request, first: int, end: int, *, is_known: bool) -> None:
        cache = self._blocks.cache
        assert cache is not None
        for index in range(first, end):
            block = request.block_table[index]
            if (entry := cache.entry(block)) is not None:  # else another block holds the same
                self._disk.keep(block, entry, index, request.tenant, is_known=is_known)

    def forget(self, request: Request) -> None:
        self._disk.forget(request.block_hashes, request.tenant)

    def check(self, running: Sequence[Any], waiting: Sequence[Any]) -> None:
        """Prove that staged bytes are counted right."""
        self._disk.check()
