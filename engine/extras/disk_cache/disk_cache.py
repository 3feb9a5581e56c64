"""DiskCache: prefix cache that outlives the process. A request's blocks are read before it is queued, written later.

    disk  --fetch, in threads, before the request is queued-->  staged, in host memory  --with its first step-->  blocks
    disk  <--a thread of low priority, 1 % of the time while steps run, all of it otherwise--  blocks

No step waits for a file. Whatever is wrong with a file makes it a miss; see entry.py and entry_folder.py.
"""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ...config import ResolvedConfig
from ...config.host_memory import available_memory
from ...core.block_manager import BlockManager, CacheSpec
from ...core.state_places import StateSpec
from ...errors import ConfigError, UnavailableError
from ...execution.runner.model_runner import ModelRunner
from ...formats.checkpoint import model_folder
from ...private_file import read_key
from .activity import Activity
from .cache_bytes import Bytes, CacheBytes
from .entry import BLOCK, STATE, EntryCodec, Identity, packed
from .entry_folder import EntryFolder
from .entry_reader import EntryReader, Found
from .loading_runner import LoadingRunner
from .namespace import namespace
from .read_buffers import ReadBuffers
from .write_behind import Write, WriteBehind

_log = logging.getLogger("splitfuse.engine")
_STAGED_SHARE = 1 / 16  # share of the free memory when the model is loaded
_LEAST_STAGED = 64 * 2**20
_TOUCHED = 64 * 2**20  # bytes of buffers, and of blocks, that are touched before a prompt is read
_NUM_READERS = 2
_NAMESPACE_WAIT_S = 0.3  # a file of 300 MB is hashed in this time; a larger one is waited for beside the first requests
_CLOSE_S = 10.0
_READ_S, _PAUSE_S = 10.0, 60.0
_MAX_CODECS = 1024


class DiskCache:
    """Prefix cache on disk of one engine. Its methods belong to the scheduler's thread."""

    def __init__(self, config: ResolvedConfig, runner: ModelRunner, *, fingerprint: str) -> None:
        """Open the folder of `--prefix-cache-dir`. Raises ConfigError."""
        assert config.prefix_cache_dir is not None
        _refuse_others(config, runner)
        key_file = config.prefix_cache_key_file
        self._key = None if key_file is None else read_key(Path(key_file), setting="--prefix-cache-key-file")
        EntryCodec(b"", "", self._key)  # a missing package is found now
        self._config, self._loaded = config, runner.loaded
        self._folder = EntryFolder(Path(config.prefix_cache_dir))
        self._activity = Activity()
        self._memory = CacheBytes(runner.cache)
        self.runner = LoadingRunner(runner, self._memory, self._activity)
        self._writes = WriteBehind(self._folder, config.prefix_cache_disk_bytes, self._activity)
        self._threads = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="splitfuse-prefix-read")
        self._max_staged = max(_LEAST_STAGED, int(available_memory() * _STAGED_SHARE))
        entry_bytes = EntryCodec(b"", "", self._key).num_bytes(self._memory.block_bytes)
        self._buffers = ReadBuffers(entry_bytes, max_bytes=_TOUCHED)
        self._reader = EntryReader(
            self._folder, self._memory, self._buffers, max_bytes=self._max_staged, on_damaged=self._writes.remove
        )
        self._num_staged_bytes = 0
        self._staged: OrderedDict[tuple[bytes, bytes], Bytes] = OrderedDict()  # by kind and block hash
        self._codecs: dict[str, EntryCodec] = {}  # by tenant
        self._namespace: bytes | None = None
        self._next_read = 0.0
        self._generation = 0  # number of changes of the weights
        self.num_hit_tokens = self.num_read_bytes = 0
        self.blocks: Any = None
        self.change(model_folder(config, config.model), fingerprint, wait_s=_NAMESPACE_WAIT_S)

    def block_manager(self, spec: CacheSpec, states: StateSpec | None, **options: Any) -> BlockManager:
        """Make the engine's block manager."""
        if states is None:
            from .block_manager import DiskBlockManager

            self.blocks = DiskBlockManager(spec, disk=self, **options)
        else:
            from .hybrid_block_manager import DiskHybridBlockManager

            self.blocks = DiskHybridBlockManager(spec, states, disk=self, **options)
        blocks: BlockManager = self.blocks
        return blocks

    # Weights.

    def change(self, path: Path | None, fingerprint: str, *, wait_s: float = 0.0) -> None:
        """Take entries of these weights from now on; of none if they came as tensors (`path` None).

        The weights are hashed beside the steps, and until that is done nothing is read or written. `wait_s`: seconds to
        wait for it.
        """
        self._generation += 1
        self._namespace = None
        self._staged.clear()
        self._num_staged_bytes = 0
        self._codecs.clear()
        if path is not None:
            hashing = threading.Thread(
                target=self._find_namespace, args=(path, fingerprint, self._generation), daemon=True
            )
            hashing.start()
            hashing.join(wait_s)

    def _find_namespace(self, path: Path, fingerprint: str, generation: int) -> None:
        try:
            found = namespace(
                self._config, self._loaded, path=path, fingerprint=fingerprint, layout=self._memory.layout
            )
        except (OSError, ConfigError, UnavailableError) as exc:
            _log.warning("prefix cache on disk: %s; nothing is read or written", exc)
            return
        if generation == self._generation:
            self._namespace = found
            if self._folder.exists(found.hex()[:32]):
                self._threads.submit(self._touch)

    def _touch(self) -> None:
        self._buffers.touch()
        self._memory.touch_blocks(_TOUCHED)

    def _codec(self, tenant: str) -> EntryCodec:
        assert self._namespace is not None
        if tenant not in self._codecs:
            if len(self._codecs) >= _MAX_CODECS:
                self._codecs.clear()
            self._codecs[tenant] = EntryCodec(self._namespace, tenant, self._key)
        return self._codecs[tenant]

    # Reading.

    async def fetch(self, token_ids: Sequence[int], *, tenant: str, salt: str) -> None:
        """Read the blocks of a prompt that are on disk, beside the event loop. Best before the prompt is queued."""
        if (read := self._reading(token_ids, tenant=tenant, salt=salt)) is not None:
            generation = self._generation
            try:
                reading = asyncio.get_running_loop().run_in_executor(self._threads, read)
            except RuntimeError:  # closed: the server drains
                return
            try:
                self._stage(await asyncio.wait_for(reading, _READ_S), generation)
            except TimeoutError:  # a share of the network that hangs
                _log.warning("prefix cache on disk: no answer for %g s; not read for %g s", _READ_S, _PAUSE_S)
                self._next_read = time.monotonic() + _PAUSE_S

    def fetch_now(self, token_ids: Sequence[int], *, tenant: str, salt: str) -> None:
        """Like `fetch`, and wait here."""
        if (read := self._reading(token_ids, tenant=tenant, salt=salt)) is not None:
            self._stage(read(), self._generation)

    def _reading(self, token_ids: Sequence[int], *, tenant: str, salt: str) -> Callable[[], list[Found]] | None:
        """Return the reading of the blocks that are not in the cache; None if there is nothing to look for."""
        size, cache = self.blocks.device.block_size, self.blocks.cache
        limit = (len(token_ids) - 1) // size
        if self._namespace is None or not limit or time.monotonic() < self._next_read:
            return None
        hashes: list[bytes] = []
        cache.extend_hashes(hashes, token_ids, tenant=tenant, salt=salt)
        if self.blocks.has_states:
            first = self.blocks.num_with_state(hashes[:limit], token_ids, tenant=tenant, salt=salt)
        else:
            first = len(cache.find(hashes, token_ids, tenant=tenant, salt=salt, limit=limit))
        while first < limit and (BLOCK, hashes[first]) in self._staged and not self.blocks.has_states:
            first += 1
        if first >= limit:
            return None
        tokens = [packed(token_ids[start : start + size]) for start in range(0, limit * size, size)]
        read = self._reader.read_with_state if self.blocks.has_states else self._reader.read_chain
        pairs = list(zip(hashes[:limit], tokens, strict=True))
        return partial(read, self._codec(tenant), self._namespace.hex()[:32], pairs, first)

    def _stage(self, found: Sequence[Found], generation: int) -> None:
        """Keep the blocks read for a request until it is admitted, unless the weights have changed meanwhile."""
        if generation != self._generation or not found:
            return
        for identity, payload, _ in found:
            self._unstage((identity.kind, identity.block_hash))
            self._staged[identity.kind, identity.block_hash] = payload
            self._num_staged_bytes += payload.nbytes
            self.num_read_bytes += payload.nbytes
        while self._num_staged_bytes > self._max_staged and len(self._staged) > len(found):
            self._unstage(next(iter(self._staged)))
        self._writes.use([path for _, _, path in reversed(found)])

    def _unstage(self, key: tuple[bytes, bytes]) -> None:
        payload = self._staged.pop(key, None)
        if payload is not None:
            self._num_staged_bytes -= payload.nbytes

    # Admission.

    @property
    def has_staged(self) -> bool:
        """True if anything that was read waits for its request."""
        return bool(self._staged)

    def staged_blocks(self, hashes: Sequence[bytes]) -> tuple[Bytes, ...]:
        """Return the staged blocks of the longest beginning of these hashes."""
        found: list[Bytes] = []
        for block_hash in hashes:
            payload = self._staged.get((BLOCK, block_hash))
            if payload is None:
                break
            found.append(payload)
        return tuple(found)

    def staged_state(self, block_hash: bytes) -> Bytes | None:
        """Return the staged state behind a block."""
        return self._staged.get((STATE, block_hash))

    def load_blocks(self, blocks: Sequence[int], payloads: Sequence[Bytes], hashes: Sequence[bytes]) -> None:
        """Fill blocks before the next step computes."""
        self.runner.blocks += zip(blocks, payloads, strict=True)
        self.num_hit_tokens += len(blocks) * self.blocks.device.block_size
        for block_hash in hashes:
            self._unstage((BLOCK, block_hash))

    def load_state(self, slot: int, payload: Bytes, block_hash: bytes) -> None:
        """Fill a slot before the next step computes."""
        self.runner.states.append((slot, payload))
        self._unstage((STATE, block_hash))

    # Writing.

    def write_block(self, block: int, content: Any, index: int, tenant: str, *, is_known: bool = False) -> None:
        """Queue the index-th block of a prompt. `content`: its entry in the prefix cache, while it has it."""
        if self._namespace is None or not self._memory.block_bytes:
            return
        contents = self.blocks.cache._content  # PrefixCache writes it, and a block's entry is one object
        self._writes.add(
            Write(
                self._codec(tenant),
                self._namespace.hex()[:32],
                Identity(BLOCK, content[0], content[2]),
                self.blocks.device.block_size,
                1000 * index,
                partial(self._memory.read_block, block),
                lambda: contents.get(block) is content,
            ),
            is_known=is_known,
        )

    def write_state(self, content: Any, checkpoint: Any) -> None:
        """Queue the state of a checkpoint behind a cached block."""
        if self._namespace is None or not self._memory.slot_bytes:
            return
        checkpoints = self.blocks.slots.checkpoints
        self._writes.add(
            Write(
                self._codec(checkpoint.tenant),
                self._namespace.hex()[:32],
                Identity(STATE, content[0], content[2]),
                checkpoint.gain,
                0,
                partial(self._memory.read_slot, checkpoint.slot),
                lambda: checkpoints.get(checkpoint.key) is checkpoint,
            )
        )

    def remove(self, block_hashes: Sequence[bytes], tenant: str) -> None:
        """Delete entries whose contents are wrong."""
        if self._namespace is not None:
            codec, folder = self._codec(tenant), self._namespace.hex()[:32]
            for block_hash in block_hashes:
                for kind in (BLOCK, STATE):
                    name = codec.name(Identity(kind, block_hash, b""))
                    self._writes.remove(f"{folder}/{codec.tenant_name}/{name}")

    @property
    def num_damaged(self) -> int:
        """Number of files so far that were no good."""
        return self._reader.num_damaged

    def flush(self, timeout: float = _CLOSE_S) -> None:
        """Write all queued blocks, and wait until they are on disk."""
        self._writes.flush(timeout)

    def close(self) -> None:
        """Write queued blocks for a while, then end the threads."""
        self.flush()
        self._writes.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._reader.close()

    def stats(self) -> dict[str, Any]:
        """Return counts for /stats."""
        writes = self._writes
        counts = {
            "hits": self.num_hit_tokens,
            "read_bytes": self.num_read_bytes,
            "written_bytes": writes.num_written_bytes,
            "damaged": self.num_damaged,
            "dropped": writes.num_dropped,
            "evictions": writes.index.num_evictions,
            "entries": len(writes.index),
            "bytes": writes.index.num_bytes,
            "max_bytes": self._config.prefix_cache_disk_bytes,
            "staged_bytes": self._num_staged_bytes,
            "is_writer": self._folder.is_writer,
            "failure": writes.failure,
        }
        return {f"prefix_cache_disk_{name}": value for name, value in counts.items()}

    def check(self) -> None:
        """Prove that staged bytes are counted right."""
        assert self._num_staged_bytes == sum(payload.nbytes for payload in self._staged.values())


def _refuse_others(config: ResolvedConfig, runner: ModelRunner) -> None:
    """Raise ConfigError where the cache on disk is not built."""
    if runner.loaded.device.type != "cpu":
        raise ConfigError("--prefix-cache-dir is built for --device cpu only so far; leave it out")
    if runner.ranks is not None:
        raise ConfigError("--prefix-cache-dir is not built with --tensor-parallel-size or slices; leave it out")
    if config.async_scheduling:
        raise ConfigError("--prefix-cache-dir is not built with --async-scheduling; leave one of them out")
