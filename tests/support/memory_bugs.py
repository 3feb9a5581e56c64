"""Bugs in the ownership, the lookup and the moves of blocks."""

from typing import Any

from planted_bug import Bugs, Method, plant

from splitfuse.engine.core.block_allocator import BlockAllocator
from splitfuse.engine.core.block_manager import BlockManager
from splitfuse.engine.core.block_ports import Prefix
from splitfuse.engine.core.cache_shares import CacheShares
from splitfuse.engine.core.prefix_cache import PrefixCache, _packed

BUGS: Bugs = {}


# Blocks and references.


@plant(BUGS, BlockManager, "blocks_to_add")
def last_block_is_off_by_one(right: Method, self: Any, request: Any, num_tokens: Any) -> Any:
    return right(self, request, num_tokens - 1)


@plant(BUGS, BlockManager, "release")
def block_is_freed_twice(right: Method, self: Any, request: Any) -> None:
    self.device.free(request.block_table[:1])
    right(self, request)


@plant(BUGS, BlockAllocator, "free", shows_in_tokens=True)
def shared_block_is_freed_for_all(right: Method, self: Any, blocks: Any) -> None:
    for block in blocks:
        self._references[block] = 1
    right(self, blocks)


@plant(BUGS, BlockAllocator, "share", shows_in_tokens=True)
def sharing_takes_no_reference(right: Method, self: Any, blocks: Any) -> None:
    for block in blocks:
        if self._free.pop(block, block) is None and self._cache is not None:
            self._cache.shares.use(block)
        self._references[block] = max(1, self._references[block])


@plant(BUGS, BlockAllocator, "share", shows_in_tokens=True)
def shared_block_is_still_handed_out(right: Method, self: Any, blocks: Any) -> None:
    for block in blocks:
        self._references[block] += 1


@plant(BUGS, BlockManager, "release")
def blocks_leak_with_a_prompt_cut_short(right: Method, self: Any, request: Any) -> None:
    if request.num_computed_tokens < request.num_prompt_tokens:
        del request.block_table[:]
    right(self, request)


@plant(BUGS, BlockManager, "_drop_host_blocks")
def host_blocks_leak(right: Method, self: Any, request: Any) -> Any:
    return request.host_block_table.clear()


@plant(BUGS, BlockManager, "num_freed_by")
def shared_blocks_count_as_freed(right: Method, self: Any, request: Any, preempted: Any) -> Any:
    return len(request.block_table)


@plant(BUGS, BlockManager, "admit", shows_in_tokens=True)
def admitted_request_grows_before_the_next_shares(right: Method, self: Any, request: Any, prefix: Any) -> None:
    right(self, request, prefix)
    if not request.host_block_table and prefix.copied is None:
        self.grow(request, request.num_computed_tokens + 1)


# The prefix cache.


@plant(BUGS, PrefixCache, "extend_hashes", shows_in_tokens=True)
def hash_is_without_its_parent(
    right: Method, self: Any, hashes: Any, token_ids: Any, *, tenant: str, salt: str
) -> None:
    size = self._block_size
    for index in range(len(hashes), len(token_ids) // size):
        hashes.append(self._hash(self._root(tenant, salt) + _packed(token_ids[index * size : (index + 1) * size])))


@plant(BUGS, PrefixCache, "_root", shows_in_tokens=True)
def hash_is_without_its_tenant(right: Method, self: Any, tenant: Any, salt: Any = "") -> Any:
    return right(self, "", salt)


@plant(BUGS, PrefixCache, "forget", shows_in_tokens=True)
def overwritten_block_is_still_found(right: Method, self: Any, block: Any) -> Any:
    return None


@plant(BUGS, PrefixCache, "find", where=lambda settings: settings.hash_is_weak, shows_in_tokens=True)
def found_tokens_are_not_compared(
    right: Method, self: Any, hashes: Any, token_ids: Any, *, tenant: str, limit: int, salt: str
) -> list[int]:
    found: list[int] = []
    for key in hashes[:limit]:
        if key not in self._block_of:
            break
        found.append(self._block_of[key])
    return found


@plant(BUGS, PrefixCache, "find")
def last_token_is_found_too(
    right: Method, self: Any, hashes: Any, token_ids: Any, *, tenant: Any, limit: Any, salt: Any
) -> Any:
    return right(self, hashes, token_ids, tenant=tenant, limit=limit + 1, salt=salt)


@plant(BUGS, PrefixCache, "find")
def last_block_is_never_found(
    right: Method, self: Any, hashes: Any, token_ids: Any, *, tenant: Any, limit: Any, salt: Any
) -> Any:
    return right(self, hashes, token_ids, tenant=tenant, limit=limit - 1, salt=salt)


@plant(BUGS, CacheShares, "_floor")
def tenants_have_no_floors(right: Method, self: Any) -> Any:
    return 0.0


@plant(BUGS, BlockManager, "remember", shows_in_tokens=True)
def block_is_remembered_before_it_is_full(
    right: Method, self: Any, request: Any, num_before: int, num_computed: int
) -> None:
    right(self, request, num_before, min(request.num_tokens, len(request.block_table) * self.device.block_size))


@plant(BUGS, BlockManager, "forget")
def failed_blocks_are_still_found(right: Method, self: Any, request: Any) -> Any:
    return None


# Copies and swaps.


@plant(BUGS, BlockManager, "forked", shows_in_tokens=True)
def copy_on_write_is_skipped(right: Method, self: Any, parent: Any) -> Prefix:
    prefix = right(self, parent)
    copied = () if prefix.copied is None else (prefix.copied,)
    return Prefix(prefix.num_tokens, prefix.blocks + copied)


@plant(BUGS, BlockManager, "take_moves", shows_in_tokens=True)
def copy_is_lost(right: Method, self: Any) -> Any:
    return right(self)._replace(copies=[])


@plant(BUGS, BlockManager, "take_moves", shows_in_tokens=True)
def swap_out_is_lost(right: Method, self: Any) -> Any:
    return right(self)._replace(swap_out=[])


@plant(BUGS, BlockManager, "take_moves", shows_in_tokens=True)
def swap_in_goes_to_the_wrong_block(right: Method, self: Any) -> Any:
    moves = right(self)
    targets = [to for _, to in moves.swap_in]
    return moves._replace(
        swap_in=[(start, to) for (start, _), to in zip(moves.swap_in, reversed(targets), strict=True)]
    )


@plant(BUGS, BlockManager, "release")
def count_survives_its_blocks(right: Method, self: Any, request: Any) -> None:
    computed = request.num_computed_tokens
    right(self, request)
    request.num_computed_tokens = computed
