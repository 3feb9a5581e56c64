"""BlockManager: each request's blocks: its own, shared with others, or on the host.

    block_table:  [0, num_cached) shared | [num_cached, num_computed) ours | up to the scheduled tokens, still empty

Questions change nothing, so that a plan can ask them. Blocks change hands when the plan is applied; the copies that
this takes are collected for the step's Batch. Knows no policy and no tensor.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from .batch import Moves
from .block_allocator import BlockAllocator
from .block_ports import BlockCompanion, Prefix
from .cache_shares import CacheShares
from .prefix_cache import PrefixCache
from .request import Request, Status


class CacheSpec(NamedTuple):
    """Size of a KV cache, in blocks of `block_size` tokens on the device and on the host."""

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    seconds_per_block: float | None = None  # to swap one block one way; None without host blocks


_NOTHING = Prefix()


class BlockManager:
    """Device blocks, the prefix cache over them, and host blocks for swapping."""

    def __init__(
        self,
        spec: CacheSpec,
        *,
        prefix_caching: bool,
        tenant_weights: Mapping[str, float] | None = None,
        companions: "Iterable[Callable[[BlockManager], BlockCompanion]]" = (),
    ) -> None:
        """`companions` make those of these blocks."""
        shares = CacheShares(spec.num_blocks, tenant_weights)
        self.companions: list[BlockCompanion] = []
        self.cache = PrefixCache(spec.block_size, shares, companions=self.companions) if prefix_caching else None
        self.device = BlockAllocator(spec.num_blocks, spec.block_size, self.cache)
        self.host = BlockAllocator(spec.num_host_blocks, spec.block_size) if spec.num_host_blocks else None
        self.seconds_per_block = spec.seconds_per_block
        self._moves = Moves([], [], [])
        self.num_prefix_queries = 0  # prompt tokens looked up
        self.num_prefix_hits = 0  # prompt tokens found
        for make in companions:
            self.companions.append(make(self))

    def blocks_to_add(self, request: Request, num_tokens: int) -> int:
        """Return how many blocks a running request lacks for its first `num_tokens` tokens."""
        return self.device.num_blocks_for(num_tokens) - len(request.block_table)

    def find_prefix(self, request: Request) -> Prefix:
        """Find the tokens of a waiting request in its parent's prompt, or in the prefix cache."""
        parent = None if request.num_output_tokens else request.parent
        # A parent that has ended may yet hold blocks, but their contents need not be good.
        is_running = parent is not None and parent.status is Status.RUNNING
        is_computed = parent and is_running and parent.num_computed_tokens >= request.num_prompt_tokens
        prefix = self.forked(parent) if parent and is_computed else self.cached(request)
        for companion in self.companions:
            prefix = companion.find_prefix(request, prefix)
        return prefix

    def cached(self, request: Request) -> Prefix:
        """Find the tokens of a waiting request in the prefix cache on the device."""
        if self.cache is None:
            return _NOTHING
        hashes, token_ids, tenant, salt = _identity(request)
        self.cache.extend_hashes(hashes, token_ids, tenant=tenant, salt=salt)
        limit = request.num_skippable_tokens // self.device.block_size
        blocks = self.cache.find(hashes, token_ids, tenant=tenant, salt=salt, limit=limit)
        return Prefix(len(blocks) * self.device.block_size, tuple(blocks)) if blocks else _NOTHING

    def forked(self, parent: Request) -> Prefix:
        """Return the parent's prompt without its last token. A block that both would write to is copied."""
        num_tokens = parent.num_prompt_tokens - 1
        full, rest = divmod(num_tokens, self.device.block_size)
        return Prefix(num_tokens, tuple(parent.block_table[:full]), parent.block_table[full] if rest else None)

    def taken_by(self, prefix: Prefix) -> set[int]:
        """Return the free blocks that sharing this prefix takes out of the pool."""
        return set(filter(self.device.is_free, prefix.blocks))

    def num_freed_by(self, request: Request, preempted: Iterable[Request]) -> int:
        """Count the blocks that come free when this request is preempted, the last one of `preempted`."""
        return self.device.num_freed_by(request.block_table, [other.block_table for other in preempted])

    def can_swap_out(self, request: Request, swapped: Sequence[Request]) -> bool:
        """True if the host has room for the request's computed tokens beside `swapped` requests."""
        has_room = all(companion.can_swap_out(len(swapped)) for companion in self.companions)
        if self.host is None or not request.num_computed_tokens or not has_room:
            return False
        num_tokens = [other.num_computed_tokens for other in (*swapped, request)]
        return sum(map(self.device.num_blocks_for, num_tokens)) <= self.host.num_free_blocks

    def admit(self, request: Request, prefix: Prefix) -> None:
        """Give a waiting request its prefix. All requests that a step admits come before any of them grows."""
        assert not request.block_table
        is_swapped = request.num_computed_tokens > prefix.num_tokens
        self.device.share(prefix.blocks)
        request.block_table.extend(prefix.blocks)
        if not is_swapped:  # at least as much as is on the host
            self._drop_host_blocks(request)
            request.num_computed_tokens = prefix.num_tokens
        if not request.num_preemptions:
            request.num_cached_tokens = prefix.num_tokens
            self.num_prefix_queries += request.num_tokens
            self.num_prefix_hits += prefix.num_tokens
        for companion in self.companions:
            companion.admit(request, prefix, is_swapped=is_swapped)

    def restore(self, request: Request, prefix: Prefix) -> None:
        """Fill the first new blocks of an admitted request: from the host after a swap, or by a copy."""
        shared = len(prefix.blocks)
        if request.host_block_table:
            assert self.host is not None
            own_blocks = self.device.allocate(len(request.host_block_table) - shared)
            self._moves.swap_in.extend(zip(request.host_block_table[shared:], own_blocks, strict=True))
            self._drop_host_blocks(request)
            request.block_table.extend(own_blocks)
        elif prefix.copied is not None:
            (own_copy,) = self.device.allocate(1)
            self._moves.copies.append((prefix.copied, own_copy))
            request.block_table.append(own_copy)
        for companion in self.companions:
            companion.restore(request, prefix)

    def grow(self, request: Request, num_tokens: int) -> None:
        """Allocate blocks for the first `num_tokens` tokens of a request."""
        missing = self.blocks_to_add(request, num_tokens)
        if missing > 0:
            request.block_table.extend(self.device.allocate(missing))

    def free_after_tokens(self, request: Request) -> None:
        """Free the blocks behind a request's tokens, which rejected drafts needed."""
        num_kept = self.device.num_blocks_for(request.num_tokens)
        if len(request.block_table) > num_kept:
            self.device.free(request.block_table[num_kept:])
            del request.block_table[num_kept:]

    def release(self, request: Request) -> None:
        """Free all blocks of a request; its tokens have to be computed again."""
        self.device.free(request.block_table)
        del request.block_table[:]
        request.num_computed_tokens = 0
        self._drop_host_blocks(request)
        for companion in self.companions:
            companion.release(request)

    def swap_out(self, request: Request) -> None:
        """Move the computed tokens of a request to the host."""
        assert self.host is not None
        used = self.device.num_blocks_for(request.num_computed_tokens)
        request.host_block_table.extend(self.host.allocate(used))
        self._moves.swap_out.extend(zip(request.block_table[:used], request.host_block_table, strict=True))
        self.device.free(request.block_table)
        del request.block_table[:]
        for companion in self.companions:
            companion.swap_out(request)

    def _drop_host_blocks(self, request: Request) -> None:
        if request.host_block_table:
            assert self.host is not None
            self.host.free(request.host_block_table)
            request.host_block_table.clear()

    def remember(self, request: Request, num_before: int, num_computed: int) -> None:
        """Put the blocks into the prefix cache that became full with tokens [num_before, num_computed)."""
        size = self.device.block_size
        if self.cache is None or num_before // size == num_computed // size:
            return
        self.remember_blocks(request, num_before // size, num_computed // size)
        for companion in self.companions:
            companion.remember(request, num_before // size, num_computed // size)

    def remember_blocks(self, request: Request, first: int, end: int) -> None:
        """Put blocks [first, end) of a request's table into the prefix cache."""
        assert self.cache is not None
        hashes, token_ids, tenant, salt = _identity(request)
        self.cache.extend_hashes(hashes, token_ids, tenant=tenant, salt=salt)
        for index in range(first, end):
            self.cache.remember(request.block_table[index], index, hashes, token_ids, tenant=tenant, salt=salt)

    def forget(self, request: Request) -> None:
        """Take the blocks of a request out of the prefix cache: their contents are wrong."""
        if self.cache is not None:
            for block in request.block_table:
                self.cache.forget(block)
        for companion in self.companions:
            companion.forget(request)

    def take_moves(self) -> Moves:
        """Return the copies to make before the step computes; called once per step."""
        moves, self._moves = self._moves, Moves([], [], [])
        for companion in self.companions:
            moves = companion.take_moves(moves)
        return moves

    def check(self, running: Iterable[Request], waiting: Iterable[Request]) -> None:
        """Prove the invariants of both pools and of the companions."""
        running, waiting = list(running), list(waiting)
        self.device.check(request.block_table for request in running)
        assert not any(request.block_table for request in waiting)
        if self.host is not None:
            self.host.check(request.host_block_table for request in waiting)
        for request in waiting:
            held = self.device.num_blocks_for(request.num_computed_tokens)
            assert len(request.host_block_table) == held, "only a swapped request keeps computed tokens"
        for companion in self.companions:
            companion.check(running, waiting)


def _identity(request: Request) -> tuple[list[bytes], list[int], str, str]:
    """Return what a request's blocks are found by: hashes, tokens, tenant and salt."""
    return request.block_hashes, request.token_ids, request.tenant, request.params.cache_salt
