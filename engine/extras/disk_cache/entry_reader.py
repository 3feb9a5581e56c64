"""EntryReader: reads the entries of a prompt in threads, up to the first that is missing or no good."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from .cache_bytes import Bytes, CacheBytes
from .entry import BLOCK, STATE, DamagedEntryError, EntryCodec, Identity
from .entry_folder import EntryFolder

_READ_AT_ONCE = 32

_log = logging.getLogger("splitfuse.engine")


class Found(NamedTuple):
    """Entry that was read, and the path of its file."""

    identity: Identity
    payload: Bytes
    path: str


class EntryReader:
    """Reader of one folder. Any number of threads may call it; each chain is read by two."""

    def __init__(
        self, folder: EntryFolder, memory: CacheBytes, *, max_bytes: int, on_damaged: Callable[[str], None]
    ) -> None:
        """`max_bytes`: of one prompt. `on_damaged` takes the path of a file that is no good."""
        self._folder, self._max_bytes, self._on_damaged = folder, max_bytes, on_damaged
        self._block_bytes, self._slot_bytes = memory.block_bytes, memory.slot_bytes
        # SHA-256 and AES are the most of it, and leave the GIL: 2,000 tokens of SmolLM2, 46 MB, take 25 ms, not 45.
        self._second = ThreadPoolExecutor(1, thread_name_prefix="splitfuse-prefix-half")
        self.num_damaged = 0

    def close(self) -> None:
        """End the thread."""
        self._second.shutdown(wait=False, cancel_futures=True)

    def read_chain(
        self, codec: EntryCodec, folder: str, pairs: Sequence[tuple[bytes, bytes]], first: int
    ) -> list[Found]:
        """Read blocks from the `first` on, up to the first that is not there."""
        most = max(1, self._max_bytes // self._block_bytes)
        now = time.time_ns()
        wanted = [(Identity(BLOCK, *pair), now - 1000 * i) for i, pair in enumerate(pairs[first : first + most])]
        found = [self._read(codec, folder, *wanted[0])]
        for start in range(1, len(wanted), _READ_AT_ONCE):
            if found[-1] is None:
                break
            some = wanted[start : start + _READ_AT_ONCE]
            halves = some[: len(some) // 2], some[len(some) // 2 :]
            later = self._second.submit(self._read_some, codec, folder, halves[0])
            second = self._read_some(codec, folder, halves[1])
            found += [*later.result(), *second]
            if None in found[start:]:
                break
        end = found.index(None) if None in found else len(found)
        return [item for item in found[:end] if item is not None]

    def read_with_state(
        self, codec: EntryCodec, folder: str, pairs: Sequence[tuple[bytes, bytes]], first: int
    ) -> list[Found]:
        """Read the last state behind the `first` block whose blocks are all there, and those blocks."""
        length, prefix = 0, f"{folder}/{codec.tenant_name}/"
        if self._block_bytes:
            while length < len(pairs) and self._folder.exists(prefix + codec.name(Identity(BLOCK, *pairs[length]))):
                length += 1
        for end in range(length, first, -1):
            identity = Identity(STATE, *pairs[end - 1])
            if (state := self._read(codec, folder, identity, time.time_ns())) is not None:
                chain = self.read_chain(codec, folder, pairs[:end], 0)
                return [*chain, state] if len(chain) == end else []
        return []

    def _read_some(self, codec: EntryCodec, folder: str, wanted: Sequence[tuple[Identity, int]]) -> list[Found | None]:
        return [self._read(codec, folder, *one) for one in wanted]

    def _read(self, codec: EntryCodec, folder: str, identity: Identity, used_ns: int) -> Found | None:
        """Read an entry; None if it is not there, or no good."""
        path = f"{folder}/{codec.tenant_name}/{codec.name(identity)}"
        num_bytes = self._block_bytes if identity.kind == BLOCK else self._slot_bytes
        try:
            data = self._folder.read(path, codec.num_bytes(num_bytes), used_ns=used_ns)
            if data is None:
                return None
            return Found(identity, np.frombuffer(codec.decode(identity, data, num_bytes), dtype=np.uint8), path)
        except DamagedEntryError as exc:
            self.num_damaged += 1
            if self.num_damaged & (self.num_damaged - 1) == 0:  # the first, then more and more rarely
                _log.warning("prefix cache on disk: %s… %s; it is computed anew", path[-40:-28], exc)
            self._on_damaged(path)
            return None
