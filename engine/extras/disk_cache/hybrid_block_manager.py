"""DiskHybridBlockManager: DiskBlockManager for models with recurrent layers, whose states are on disk beside blocks."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ...core.block_manager import Prefix
from ...core.request import Request
from ..hybrid.block_manager import HybridBlockManager, StatePrefix
from ..hybrid.checkpoints import Checkpoint
from .block_manager import OnDisk
from .cache_bytes import Bytes


@dataclass(frozen=True, slots=True, eq=False)
class StagedStatePrefix(StatePrefix):
    """Prefix whose cached blocks are followed by staged blocks and the staged state."""

    staged: tuple[Bytes, ...] = ()
    state: Bytes | None = None


class DiskHybridBlockManager(OnDisk, HybridBlockManager):
    """Manager of blocks and state slots."""

    has_states = True

    def num_with_state(self, hashes: Sequence[bytes], token_ids: Sequence[int], *, tenant: str, salt: str) -> int:
        """Return how many blocks of a prompt are in the cache, with a checkpoint behind the last of them."""
        assert self.cache is not None
        blocks = self.cache.find(hashes, token_ids, tenant=tenant, salt=salt, limit=len(hashes))
        while blocks and blocks[-1] not in self.slots.checkpoints:
            blocks.pop()
        return len(blocks)

    def find_prefix(self, request: Request) -> StatePrefix:
        found, size = super().find_prefix(request), self.device.block_size
        is_fork = found.checkpoint is not None and not isinstance(found.checkpoint.key, int)
        if is_fork or not self.disk.has_staged:
            return found
        cached = self._cached(request)
        hashes = request.block_hashes[: request.num_skippable_tokens // size]
        staged = self.disk.staged_blocks(hashes[len(cached.blocks) :])
        for end in range(len(cached.blocks) + len(staged), found.num_tokens // size, -1):
            if (state := self.disk.staged_state(hashes[end - 1])) is not None:
                blocks = cached.blocks[:end]
                num_in_chain = max(cached.num_tokens, end * size)
                return StagedStatePrefix(
                    end * size,
                    blocks,
                    num_in_chain=num_in_chain,
                    staged=staged[: end - len(blocks)],
                    state=state,
                )
        return found

    def restore(self, request: Request, prefix: Prefix) -> None:
        if not isinstance(prefix, StagedStatePrefix) or request.host_block_table:
            super().restore(request, prefix)
            return
        assert prefix.state is not None
        self.fill(request, prefix.staged)
        state, end = self._states[request], len(request.block_table)
        state.slot = self.slots.allocate()
        self.disk.load_state(state.slot, prefix.state, request.block_hashes[end - 1])
        block = self._cached_block(request, request.block_table[-1], prefix.num_tokens)
        if block is not None and super()._kept(block, state.slot, request, prefix.num_tokens) is not None:
            self.slots.share(state.slot)

    def _kept(self, key: Hashable, slot: int, request: Request, gain: int) -> Checkpoint | None:
        kept = super()._kept(key, slot, request, gain)
        if kept is not None and isinstance(key, int):
            assert self.cache is not None
            self.disk.write_state(self.cache._content[key], kept)
        return kept
