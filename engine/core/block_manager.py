"""BlockManager: where each request's tokens are: in its own blocks, in blocks shared with others, or on the host.

    block_table:  [0, num_cached) shared | [num_cached, num_computed) ours | up to the scheduled tokens, still empty

Questions change nothing, so that a plan can ask them; moves are made when the plan is applied. What has to be copied is
collected for the step's Batch. Knows no policy and no tensor.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .batch import Moves
from .block_allocator import BlockAllocator
from .cache_shares import CacheShares
from .prefix_cache import PrefixCache
from .request import Request, Status


class CacheSpec(NamedTuple):
    """The size of a KV cache, in blocks of `block_size` tokens on the device and on the host."""

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    seconds_per_block: float | None = None  # to swap one block one way; None without host blocks


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a waiting request need not compute: `blocks` to share, and `copied` if the next one is to be copied.

    `num_tokens` of it are then in the cache.
    """

    num_tokens: int = 0
    blocks: tuple[int, ...] = ()
    copied: int | None = None


_NOTHING = Prefix()


class BlockManager:
    """Device blocks, the prefix cache over them, and host blocks for swapping."""

    def __init__(
        self, spec: CacheSpec, *, prefix_caching: bool, tenant_weights: Mapping[str, float] | None = None
    ) -> None:
        shares = CacheShares(spec.num_blocks, tenant_weights)
        self.cache = PrefixCache(spec.block_size, shares) if prefix_caching else None
        self.device = BlockAllocator(spec.num_blocks, spec.block_size, self.cache)
        self.host = BlockAllocator(spec.num_host_blocks, spec.block_size) if spec.num_host_blocks else None
        self._moves = Moves([], [], [])
        self.num_prefix_queries = 0  # prompt tokens looked up
        self.num_prefix_hits = 0  # of these, found

    def blocks_to_add(self, request: Request, num_tokens: int) -> int:
        """Blocks that a running request lacks for its first `num_tokens` tokens."""
        return self.device.num_blocks_for(num_tokens) - len(request.block_table)

    def find_prefix(self, request: Request) -> Prefix:
        """What is there already of a waiting request: its parent's prompt, or what the prefix cache knows."""
        parent = None if request.num_output_tokens else request.parent
        # A parent that has ended may yet hold blocks, but what is in them need not be good.
        is_running = parent is not None and parent.status is Status.RUNNING
        if parent is not None and is_running and parent.num_computed_tokens >= request.num_prompt_tokens:
            return self._forked(parent)
        if self.cache is None:
            return _NOTHING
        self.cache.extend_hashes(
            request.block_hashes, request.token_ids, tenant=request.tenant, salt=request.params.cache_salt
        )
        limit = request.num_skippable_tokens // self.device.block_size
        blocks = self.cache.find(
            request.block_hashes, request.token_ids, tenant=request.tenant, salt=request.params.cache_salt, limit=limit
        )
        return Prefix(len(blocks) * self.device.block_size, tuple(blocks)) if blocks else _NOTHING

    def _forked(self, parent: Request) -> Prefix:
        """All of the parent's prompt but its last token; a block that both would write to is copied."""
        num_tokens = parent.num_prompt_tokens - 1
        full, rest = divmod(num_tokens, self.device.block_size)
        return Prefix(num_tokens, tuple(parent.block_table[:full]), parent.block_table[full] if rest else None)

    def taken_by(self, prefix: Prefix) -> set[int]:
        """Free blocks that sharing this prefix takes out of the pool."""
        return set(filter(self.device.is_free, prefix.blocks))

    def num_freed_by(self, request: Request, preempted: Iterable[Request]) -> int:
        """Blocks that come free when this request is preempted, and `preempted` (which holds it) before it."""
        return self.device.num_freed_by(request.block_table, [other.block_table for other in preempted])

    def can_swap_out(self, request: Request, num_promised: int) -> bool:
        """Whether the host has room for its computed tokens beside `num_promised` blocks."""
        if self.host is None or not request.num_computed_tokens:
            return False
        return self.host.num_free_blocks - num_promised >= self.device.num_blocks_for(request.num_computed_tokens)

    def admit(self, request: Request, prefix: Prefix) -> None:
        """Give a waiting request what is there already. All that are admitted in a step, before any of them grows."""
        assert not request.block_table
        self.device.share(prefix.blocks)
        request.block_table.extend(prefix.blocks)
        if prefix.num_tokens >= request.num_computed_tokens:  # more than is on the host, if anything is
            self._drop_host_blocks(request)
            request.num_computed_tokens = prefix.num_tokens
        if not request.num_preemptions:
            request.num_cached_tokens = prefix.num_tokens
            self.num_prefix_queries += request.num_tokens
            self.num_prefix_hits += prefix.num_tokens

    def restore(self, request: Request, prefix: Prefix) -> None:
        """Fill an admitted request's first new blocks: from the host if it was swapped out, or its copied block."""
        shared = len(prefix.blocks)
        if request.host_block_table:
            assert self.host is not None
            own = self.device.allocate(len(request.host_block_table) - shared)
            self._moves.swap_in.extend(zip(request.host_block_table[shared:], own, strict=True))
            self._drop_host_blocks(request)
            request.block_table.extend(own)
        elif prefix.copied is not None:
            (own_copy,) = self.device.allocate(1)
            self._moves.copies.append((prefix.copied, own_copy))
            request.block_table.append(own_copy)

    def grow(self, request: Request, num_tokens: int) -> None:
        """Make room for the first `num_tokens` tokens."""
        missing = self.blocks_to_add(request, num_tokens)
        if missing > 0:
            request.block_table.extend(self.device.allocate(missing))

    def free_after_tokens(self, request: Request) -> None:
        """Free the blocks after its tokens, which rejected drafts needed."""
        kept = self.device.num_blocks_for(request.num_tokens)
        if len(request.block_table) > kept:
            self.device.free(request.block_table[kept:])
            del request.block_table[kept:]

    def release(self, request: Request) -> None:
        """Free everything it holds; it has to be computed again."""
        self.device.free(request.block_table)
        del request.block_table[:]
        request.num_computed_tokens = 0
        self._drop_host_blocks(request)

    def swap_out(self, request: Request) -> None:
        """Move its computed tokens to the host."""
        assert self.host is not None
        used = self.device.num_blocks_for(request.num_computed_tokens)
        request.host_block_table.extend(self.host.allocate(used))
        self._moves.swap_out.extend(zip(request.block_table[:used], request.host_block_table, strict=True))
        self.device.free(request.block_table)
        del request.block_table[:]

    def _drop_host_blocks(self, request: Request) -> None:
        if request.host_block_table:
            assert self.host is not None
            self.host.free(request.host_block_table)
            request.host_block_table.clear()

    def remember(self, request: Request, num_before: int, num_computed: int) -> None:
        """Put into the prefix cache the blocks that became full as tokens [num_before, num_computed) were computed."""
        size = self.device.block_size
        if self.cache is None or num_before // size == num_computed // size:
            return
        self.cache.extend_hashes(
            request.block_hashes, request.token_ids, tenant=request.tenant, salt=request.params.cache_salt
        )
        for index in range(num_before // size, num_computed // size):
            self.cache.remember(
                request.block_table[index],
                index,
                request.block_hashes,
                request.token_ids,
                tenant=request.tenant,
                salt=request.params.cache_salt,
            )

    def forget(self, request: Request) -> None:
        """Take its blocks out of the prefix cache: something is wrong with what they hold."""
        if self.cache is not None:
            for block in request.block_table:
                self.cache.forget(block)

    def take_moves(self) -> Moves:
        """What has to be copied before the step computes; asked once per step."""
        moves, self._moves = self._moves, Moves([], [], [])
        return moves

    def check(self, running: Iterable[Request], waiting: Iterable[Request]) -> None:
        """Prove the invariants of both pools."""
        waiting = list(waiting)
        self.device.check(request.block_table for request in running)
        assert not any(request.block_table for request in waiting)
        if self.host is not None:
            self.host.check(request.host_block_table for request in waiting)
        for request in waiting:
            held = self.device.num_blocks_for(request.num_computed_tokens)
            assert len(request.host_block_table) == held, "only a swapped request keeps computed tokens"
