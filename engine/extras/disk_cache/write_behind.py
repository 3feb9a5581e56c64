"""WriteBehind: a thread that writes new entries to the folder, after the steps that computed them.

A block is not copied when it becomes full: it stays in the cache for a while, so the thread copies it when there is
time. If the block got other contents before or meanwhile, the copy is dropped: `is_current` says so afterwards.
"""

import contextlib
import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from .activity import Activity
from .entry import EntryCodec, Identity
from .entry_folder import EntryFolder
from .entry_index import EntryIndex

_log = logging.getLogger("splitfuse.engine")
_NICENESS = 10
_LOCK_EVERY_S = 5.0
_MOST_JOBS = 100_000


class Write(NamedTuple):
    """Entry to write. `copy` returns the payload, which counts if `is_current` afterwards."""

    codec: EntryCodec
    namespace: str
    identity: Identity
    gain: int
    age: int  # the smaller, the more recently used
    copy: Callable[[], Any]
    is_current: Callable[[], bool]

    @property
    def path(self) -> str:
        """Path of the file."""
        return f"{self.namespace}/{self.codec.tenant_name}/{self.codec.name(self.identity)}"


class WriteBehind:
    """Queue of writes and the thread that makes them. Its methods may be called from any thread."""

    def __init__(self, folder: EntryFolder, max_bytes: int, activity: Activity) -> None:
        self._folder, self._activity, self._max_bytes = folder, activity, max_bytes
        self.index = EntryIndex(max_bytes)
        self._is_scanned = False
        self._next_try = 0.0
        self._first: deque[Write] = deque()  # found again already
        self._jobs: deque[Write] = deque(maxlen=_MOST_JOBS)
        self._used: deque[list[str]] = deque()
        self._damaged: deque[str] = deque()
        self._wake, self._stop, self._idle = threading.Event(), threading.Event(), threading.Event()
        self._hurry = threading.Event()
        self.failure: str | None = None  # why nothing more is written
        self.num_written_bytes = 0
        self.num_dropped = 0  # entries whose block got other contents first
        self._thread = threading.Thread(target=self._run, name="splitfuse-prefix-cache", daemon=True)
        self._thread.start()

    def add(self, write: Write, *, is_known: bool = False) -> None:
        """Queue a write. `is_known`: the entry was found by another request already, so it comes first."""
        if self.failure is None:
            (self._first if is_known else self._jobs).append(write)
            self._awake()

    def use(self, paths: list[str]) -> None:
        """Count a hit of these entries."""
        self._used.append(paths)
        self._awake()

    def remove(self, path: str) -> None:
        """Delete a file that holds no good entry."""
        self._damaged.append(path)
        self._awake()

    def flush(self, timeout: float) -> None:
        """Wait until all is written, without regard to steps, or the time is up."""
        self._hurry.set()
        self._idle.clear()
        self._wake.set()
        self._idle.wait(timeout)
        self._hurry.clear()

    def close(self) -> None:
        """End the thread. What is not written yet is not."""
        self._stop.set()
        self._hurry.set()
        self._wake.set()
        self._thread.join(timeout=5)
        self._folder.close()

    def _awake(self) -> None:
        if not self._wake.is_set():
            self._wake.set()

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # on Linux the priority is a thread's own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while not self._stop.is_set():
            self._wake.clear()
            self._note()
            if (write := self._next()) is None:
                if not self._wake.is_set():
                    self._idle.set()
                    self._wake.wait()
                continue
            begin = time.monotonic()
            try:
                self._write(write)
            except Exception as exc:
                self._fail(exc)
            self._activity.rest(time.monotonic() - begin, self._hurry)

    def _note(self) -> None:
        while self._used:
            self.index.use(self._used.popleft())
        while self._damaged:
            path = self._damaged.popleft()
            if self._folder.is_writer:
                self._folder.remove(path)
                self.index.remove(path)

    def _next(self) -> Write | None:
        for jobs in (self._first, self._jobs):
            if jobs:
                return jobs.popleft()
        return None

    def _write(self, write: Write) -> None:
        if self.failure is not None or not self._may_write():
            return
        path = write.path
        if path in self.index and self._folder.exists(path):
            return
        if not write.is_current():
            self.num_dropped += 1
            return
        payload = write.copy()
        if not write.is_current():
            self.num_dropped += 1
            return
        num_bytes = write.codec.num_bytes(payload.nbytes)
        if num_bytes > self._max_bytes:
            return
        for evicted in self.index.make_room(num_bytes):
            self._folder.remove(evicted)
        pieces = write.codec.encode(write.identity, payload)
        try:
            self._folder.write(path, pieces, used_ns=time.time_ns() - write.age)
        except FileExistsError:  # another program's
            return
        self.index.add(path, tenant=write.codec.tenant_name, num_bytes=num_bytes, gain=write.gain)
        self.num_written_bytes += num_bytes

    def _may_write(self) -> bool:
        """True if this process is the writer, or can become it."""
        if not self._folder.is_writer:
            if time.monotonic() < self._next_try:
                return False
            self._next_try = time.monotonic() + _LOCK_EVERY_S
            if not self._folder.try_to_write():
                return False
        if not self._is_scanned:
            for entry in sorted(self._folder.scan(), key=lambda entry: entry.used_ns):
                tenant = entry.path.split("/")[1]
                self.index.add(entry.path, tenant=tenant, num_bytes=entry.num_bytes, gain=16)
            for path in self.index.make_room(0):
                self._folder.remove(path)
            self._is_scanned = True
        return True

    def _fail(self, exc: Exception) -> None:
        self.failure = str(exc)
        self._first.clear()
        self._jobs.clear()
        is_full = isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if is_full else str(exc)
        _log.warning("prefix cache on disk: %s; nothing more is written to it, and serving goes on", reason)
