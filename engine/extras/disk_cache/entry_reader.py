"""EntryReader: reads the entries of a prompt in threads, up to the first that is missing or no good."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from .cache_bytes import Bytes, CacheBytes
from .entry import BLOCK, STATE, DamagedEntryError, EntryCodec, Identity
from .entry_folder import EntryFolder
from .read_buffers import ReadBuffers

_log = logging.getLogger("splitfuse.engine")


class Found(NamedTuple):
    """Entry that was read, and the path of its file."""

    identity: Identity
    payload: Bytes
    path: str


class EntryReader:
    """Reader of one folder. Any number of threads may call it; each chain is read by two."""

    def __init__(
        self,
        folder: EntryFolder,
        memory: CacheBytes,
        buffers: ReadBuffers,
        *,
        max_bytes: int,
        on_damaged: Callable[[str], None],
    ) -> None:
        """`max_bytes`: of one prompt. `on_damaged` takes the path of a file that is no good."""
        self._folder, self._buffers, self._max_bytes, self._on_damaged = folder, buffers, max_bytes, on_damaged
        self._block_bytes, self._slot_bytes = memory.block_bytes, memory.slot_bytes
        # SHA-256 is the most of it, and leaves the GIL: 2,000 tokens of SmolLM2, 46 MB, take 25 ms, not 45.
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
        found: list[Found | None] = [None] * len(wanted)
        numbers = iter(range(len(wanted)))

        def read_some() -> None:
            for number in numbers:
                found[number] = self._read(codec, folder, *wanted[number])
                if found[number] is None:
                    deque(numbers, maxlen=0)  # nothing behind it is of use

        found[0] = self._read(codec, folder, *wanted[next(numbers)])
        if found[0] is not None and len(wanted) > 1:
            second = self._second.submit(read_some)
            read_some()
            second.result()
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

    def _read(self, codec: EntryCodec, folder: str, identity: Identity, used_ns: int) -> Found | None:
        """Read an entry; None if it is not there, or no good."""
        path = f"{folder}/{codec.tenant_name}/{codec.name(identity)}"
        num_bytes = self._block_bytes if identity.kind == BLOCK else self._slot_bytes
        try:
            data = self._buffers.take(codec.num_bytes(num_bytes))
            if not self._folder.read(path, data, used_ns=used_ns):
                return None
            payload = codec.decode(identity, data, num_bytes)
            return Found(identity, np.frombuffer(payload, dtype=np.uint8), path)
        except DamagedEntryError as exc:
            self.num_damaged += 1
            if self.num_damaged & (self.num_damaged - 1) == 0:  # the first, then more and more rarely
                _log.warning("prefix cache on disk: %s… %s; it is computed anew", path[-40:-28], exc)
            self._on_damaged(path)
            return None
