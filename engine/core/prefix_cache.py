"""PrefixCache: finds blocks by their tokens, so that a prompt that begins like an earlier one need not be computed.

A full block's key is a hash chained over its tokens and all tokens before it, rooted in the namespace of the tenant and
of the request's salt. A block that is found is compared token by token, and by its parent's hash, so a collision of two
blocks costs a miss. Only equal blocks after two beginnings whose hashes collide would be confused, and that takes a
collision of sha256.
"""

import hashlib
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from .block_ports import BlockCompanion
from .cache_shares import CacheShares

Hash = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """Hash a block. Tests replace this function by a weak one."""
    return hashlib.sha256(data).digest()


class Entry(NamedTuple):
    """Contents of a cached block."""

    block_hash: bytes
    parent: bytes  # its parent's hash
    tokens: bytes


class PrefixCache:
    """Map of chained hashes to block ids. It owns no block: it forgets one when the allocator hands it out."""

    def __init__(
        self,
        block_size: int,
        shares: CacheShares,
        hash_function: Hash = sha256,
        *,
        companions: Sequence[BlockCompanion] = (),
    ) -> None:
        """`companions` forget the blocks that are dropped."""
        self.shares = shares
        self._companions = companions
        self._block_size = block_size
        self._hash = hash_function
        self._block_of: dict[bytes, int] = {}
        self._content: dict[int, Entry] = {}  # by block

    def __contains__(self, block: int) -> bool:
        return block in self._content

    def entry(self, block: int) -> Entry | None:
        """Return the contents of a block, always the same object; None if it is not cached. Any thread may ask."""
        return self._content.get(block)

    @property
    def blocks(self) -> Collection[int]:
        """Blocks whose contents can be found."""
        return self._content.keys()

    def extend_hashes(self, hashes: list[bytes], token_ids: Sequence[int], *, tenant: str, salt: str = "") -> None:
        """Append the hashes of full blocks of `token_ids` that are missing in `hashes`."""
        size = self._block_size
        for index in range(len(hashes), len(token_ids) // size):
            parent = hashes[-1] if hashes else self._root(tenant, salt)
            hashes.append(self._hash(parent + _packed(token_ids[index * size : (index + 1) * size])))

    def find(
        self, hashes: Sequence[bytes], token_ids: Sequence[int], *, tenant: str, limit: int, salt: str = ""
    ) -> list[int]:
        """Return the blocks of the longest known beginning of `token_ids`, at most `limit`."""
        blocks: list[int] = []
        size = self._block_size
        parent = self._root(tenant, salt)
        for index, key in enumerate(hashes[:limit]):
            block = self._block_of.get(key)
            if block is None:
                break
            tokens = _packed(token_ids[index * size : (index + 1) * size])
            if self._content[block] != (key, parent, tokens):
                break
            blocks.append(block)
            parent = key
        return blocks

    def remember(
        self, block: int, index: int, hashes: Sequence[bytes], token_ids: Sequence[int], *, tenant: str, salt: str = ""
    ) -> None:
        """Note that `block` holds the index-th full block of these tokens. If several do, the first block stays."""
        if hashes[index] in self._block_of or block in self._content:
            return
        parent = hashes[index - 1] if index else self._root(tenant, salt)
        size = self._block_size
        self._block_of[hashes[index]] = block
        self._content[block] = Entry(hashes[index], parent, _packed(token_ids[index * size : (index + 1) * size]))
        self.shares.add(block, tenant)

    def forget(self, block: int) -> None:
        """Drop a block that gets other contents."""
        content = self._content.pop(block, None)
        if content is not None:
            del self._block_of[content[0]]
            self.shares.remove(block)
            for companion in self._companions:
                companion.forget_block(block)

    def check(self, is_free: Callable[[int], bool]) -> None:
        """Prove that the two maps mirror each other, and that tenants' shares are counted right."""
        assert {content[0]: block for block, content in self._content.items()} == self._block_of
        self.shares.check(self._content, is_free)

    def _root(self, tenant: str, salt: str = "") -> bytes:
        # Tenants never see each other's blocks, and neither do salts: not by a hit and not by its speed.
        root = self._hash(b"tenant " + tenant.encode())
        return self._hash(root + salt.encode()) if salt else root


def _packed(token_ids: Sequence[int]) -> bytes:
    return array("i", token_ids).tobytes()
