"""DiskBlockManager: BlockManager that also finds the blocks that were read from disk, and hands new ones to be written.

a prompt:  in blocks of the cache | in staged blocks, which get blocks of their own at admission | to compute
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...core.block_manager import BlockManager, Prefix
from ...core.request import Request
from .cache_bytes import Bytes


class Disk(Protocol):
    """What a block manager asks of the DiskCache."""

    @property
    def has_staged(self) -> bool: ...
    def staged_blocks(self, hashes: Sequence[bytes]) -> tuple[Bytes, ...]: ...
    def staged_state(self, block_hash: bytes) -> Bytes | None: ...
    def load_blocks(self, blocks: Sequence[int], payloads: Sequence[Bytes], hashes: Sequence[bytes]) -> None: ...
    def load_state(self, slot: int, payload: Bytes, block_hash: bytes) -> None: ...
    def write_block(self, block: int, content: Any, index: int, tenant: str, *, is_known: bool = False) -> None: ...
    def write_state(self, content: Any, checkpoint: Any) -> None: ...
    def remove(self, block_hashes: Sequence[bytes], tenant: str) -> None: ...
    def check(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class StagedPrefix(Prefix):
    """Prefix whose cached blocks are followed by staged blocks."""

    staged: tuple[Bytes, ...] = ()


class OnDisk(BlockManager):
    """The part of a block manager that disk needs, for both kinds of models."""

    has_states = False

    def __init__(self, *args: Any, disk: Disk, **options: Any) -> None:
        super().__init__(*args, **options)
        self.disk = disk

    def admit(self, request: Request, prefix: Prefix) -> None:
        super().admit(request, prefix)
        self._write(request, len(prefix.blocks), is_known=True)

    def fill(self, request: Request, staged: tuple[Bytes, ...]) -> None:
        """Give an admitted request blocks that are filled with its staged ones."""
        start, size = len(request.block_table), self.device.block_size
        blocks = self.device.allocate(len(staged))
        request.block_table.extend(blocks)
        end = start + len(blocks)
        self.disk.load_blocks(blocks, staged, request.block_hashes[start:end])
        super().remember(request, start * size, end * size)

    def remember(self, request: Request, num_before: int, num_computed: int) -> None:
        super().remember(request, num_before, num_computed)
        size = self.device.block_size
        self._write(request, num_computed // size, first=num_before // size)

    def _write(self, request: Request, end: int, *, first: int = 0, is_known: bool = False) -> None:
        assert self.cache is not None
        for index in range(first, end):
            block = request.block_table[index]
            content = self.cache._content.get(block)
            if content is not None:  # else another block holds the same
                self.disk.write_block(block, content, index, request.tenant, is_known=is_known)

    def forget(self, request: Request) -> None:
        super().forget(request)
        self.disk.remove(request.block_hashes, request.tenant)

    def check(self, running: Iterable[Request], waiting: Iterable[Request]) -> None:
        """Prove the invariants, the staged blocks' too."""
        super().check(running, waiting)
        self.disk.check()


class DiskBlockManager(OnDisk):
    """Manager of the blocks of a model with attention alone."""

    def _cached(self, request: Request) -> Prefix:
        prefix, size = super()._cached(request), self.device.block_size
        first = len(prefix.blocks)
        staged = self.disk.staged_blocks(request.block_hashes[first : request.num_skippable_tokens // size])
        return StagedPrefix((first + len(staged)) * size, prefix.blocks, staged=staged) if staged else prefix

    def restore(self, request: Request, prefix: Prefix) -> None:
        if isinstance(prefix, StagedPrefix) and not request.host_block_table:
            self.fill(request, prefix.staged)
        else:
            super().restore(request, prefix)
