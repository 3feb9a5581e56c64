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
from ...config.host import available_memory
from ...core.block_manager import BlockManager
from ...core.ports import Runner
from ...core.prefix_cache import Entry
from ...core.sampling_params import SamplingParams
from ...errors import ConfigError, UnavailableError
from ...execution.runner.model_runner import ModelRunner
from ...formats.checkpoint import model_folder
from ...serving.engine_part import Assembly, EnginePart, NewCompanion, ServedModel
from . import DiskCacheSettings
from .activity import Activity
from .cache_bytes import Bytes, CacheBytes
from .entry import BLOCK, STATE, EntryCodec, Identity, packed
from .entry_folder import EntryFolder
from .entry_reader import EntryReader, Found
from .loading_runner import LoadingRunner
from .namespace import namespace
from .read_buffers import ReadBuffers
from .staged_blocks import StagedBlocks
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


class DiskCache(EnginePart):
    """Prefix cache on disk of one engine. Its methods belong to the scheduler's thread."""

    def __init__(self, config: ResolvedConfig, runner: ModelRunner, *, fingerprint: str) -> None:
        """Open the folder of `--prefix-cache-dir`. Raises ConfigError."""
        settings = config.section(DiskCacheSettings)
        assert settings.prefix_cache_dir is not None
        _refuse_others(config, runner)
        self._config, self._settings, self._loaded = config, settings, runner.loaded
        self._folder = EntryFolder(Path(settings.prefix_cache_dir))
        self._activity = Activity()
        self._memory = CacheBytes(runner.cache)
        self._loading = LoadingRunner(runner, self._memory, self._activity)
        self._writes = WriteBehind(self._folder, settings.prefix_cache_disk_bytes, self._activity)
        self._threads = ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="splitfuse-prefix-read")
        self._max_staged = max(_LEAST_STAGED, int(available_memory() * _STAGED_SHARE))
        entry_bytes = EntryCodec(b"", "").num_bytes(self._memory.block_bytes)
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
        self.blocks: BlockManager | None = None  # of the engine, once there are steps
        self.change(model_folder(config, config.model), fingerprint, wait_s=_NAMESPACE_WAIT_S)

    @classmethod
    def of(cls, model: ServedModel) -> "DiskCache":
        """Open the prefix cache of an engine. Raises ConfigError."""
        return cls(model.config, model.runner, fingerprint=model.config.fingerprint)

    def runner(self, runner: Runner, assembly: Assembly) -> Runner:
        """Load what was read before a step computes."""
        return self._loading

    def companions(self, companions: Sequence[NewCompanion], assembly: Assembly) -> Sequence[NewCompanion]:
        """Keep the blocks of the engine's cache."""
        has_cache = assembly.config.enable_prefix_caching and not assembly.is_test
        return [*companions, self._serve] if has_cache else companions

    def _serve(self, blocks: BlockManager) -> StagedBlocks:
        self.blocks = blocks
        return StagedBlocks(self, blocks)

    # Weights.

    def weights_changed(self, path: Path | None, fingerprint: str) -> None:
        """Like EnginePart."""
        self.change(path, fingerprint)

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
            self._codecs[tenant] = EntryCodec(self._namespace, tenant)
        return self._codecs[tenant]

    # Reading.

    async def fetch(self, token_ids: Sequence[int], params: SamplingParams, *, tenant: str) -> None:
        """Read the blocks of a prompt that are on disk, beside the event loop. Best before the prompt is queued."""
        if (read := self._reading(token_ids, tenant=tenant, salt=params.cache_salt)) is not None:
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

    def _reading(self, token_ids: Sequence[int], *, tenant: str, salt: str) -> Callable[[], list[Found]] | None:
        """Return the reading of the blocks that are not in the cache; None if there is nothing to look for."""
        if self.blocks is None or self.blocks.cache is None:
            return None
        size, cache = self.blocks.device.block_size, self.blocks.cache
        has_states = len(self.blocks.companions) > 1
        limit = (len(token_ids) - 1) // size
        if self._namespace is None or not limit or time.monotonic() < self._next_read:
            return None
        hashes: list[bytes] = []
        cache.extend_hashes(hashes, token_ids, tenant=tenant, salt=salt)
        blocks = cache.find(hashes, token_ids, tenant=tenant, salt=salt, limit=limit)
        while blocks and not all(companion.can_go_on(blocks[-1]) for companion in self.blocks.companions):
            blocks.pop()
        first = len(blocks)
        while not has_states and first < limit and (BLOCK, hashes[first]) in self._staged:
            first += 1
        if first >= limit:
            return None
        tokens = [packed(token_ids[start : start + size]) for start in range(0, limit * size, size)]
        read = self._reader.read_with_state if has_states else self._reader.read_chain
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

    def load(self, blocks: Sequence[int], contents: Sequence[Bytes], hashes: Sequence[bytes]) -> None:
        """Fill blocks before the next step computes."""
        self._loading.blocks += zip(blocks, contents, strict=True)
        self.num_hit_tokens += len(blocks) * self._config.block_size
        for block_hash in hashes:
            self._unstage((BLOCK, block_hash))

    def load_state(self, slot: int, contents: Bytes, block_hash: bytes) -> None:
        """Fill a slot before the next step computes."""
        self._loading.states.append((slot, contents))
        self._unstage((STATE, block_hash))

    # Writing.

    def keep(self, block: int, entry: Entry, index: int, tenant: str, *, is_known: bool) -> None:
        """Queue the index-th block of a prompt, to be written while the prefix cache has it."""
        if self._namespace is None or not self._memory.block_bytes:
            return
        assert self.blocks is not None
        assert self.blocks.cache is not None
        entry_of = self.blocks.cache.entry
        self._writes.add(
            Write(
                self._codec(tenant),
                self._namespace.hex()[:32],
                Identity(BLOCK, entry.block_hash, entry.tokens),
                self._config.block_size,
                1000 * index,
                partial(self._memory.read_block, block),
                lambda: entry_of(block) is entry,
            ),
            is_known=is_known,
        )

    def keep_state(self, entry: Entry, slot: int, *, tenant: str, gain: int, is_kept: Callable[[], bool]) -> None:
        """Queue the state behind a cached block."""
        if self._namespace is None or not self._memory.slot_bytes:
            return
        self._writes.add(
            Write(
                self._codec(tenant),
                self._namespace.hex()[:32],
                Identity(STATE, entry.block_hash, entry.tokens),
                gain,
                0,
                partial(self._memory.read_slot, slot),
                is_kept,
            )
        )

    def forget(self, hashes: Sequence[bytes], tenant: str) -> None:
        """Delete entries whose contents are wrong."""
        if self._namespace is not None:
            codec, folder = self._codec(tenant), self._namespace.hex()[:32]
            for block_hash in hashes:
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
            "max_bytes": self._settings.prefix_cache_disk_bytes,
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
