"""EntryFolder: the files of a prefix cache. One server writes and deletes, any number of servers read.

    PATH/writer.lock                    locked (flock) by the server that writes, for as long as its process lives
    PATH/<namespace>/<tenant>/<name>    one entry, complete from the moment it has this name

An entry is written beside its place and renamed, so kill -9 leaves no half of one; what a power cut leaves is found by
the checksum. Nothing is synced: an entry that is lost is computed again. Files are 0600 in folders 0700, no link is
followed, and files of other users, or that others can change, are not read. What is no entry by its name and head is
not touched, and a folder that holds such files is refused (`engine/private_file.py`).
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...private_file import claim_folder, create_private, is_own, remove_own, replace_own
from .entry import MAGIC, DamagedEntryError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_SETTING = "--prefix-cache-dir"
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_DRAFT = ".draft"
_LOCK = "writer.lock"
_FORM = re.compile(r"[0-9a-f]{32}(/[0-9a-f]{32}(/[0-9a-f]{40}(\.draft)?)?)?")
_MOST_NAMES = 2_000_000  # a folder of more is not ours


class StoredEntry(NamedTuple):
    """File of an entry, relative to the folder."""

    path: str
    num_bytes: int
    used_ns: int


class EntryFolder:
    """Folder of entries, made if it is not there. Paths are relative to it: namespace/tenant/name."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if others could change its files, or if it holds any but entries."""
        if fcntl is None:
            raise ConfigError(f"{_SETTING} is not built for Windows; leave it out")
        self._path = path
        self._lock: int | None = None
        claim_folder(path, setting=_SETTING, is_entry=self._is_entry)

    def _is_entry(self, path: Path) -> bool:
        name = path.relative_to(self._path).as_posix()
        if name == _LOCK:
            return is_own(path, b"")
        is_folder = name.count("/") < 2 and stat.S_ISDIR(path.lstat().st_mode)
        return _FORM.fullmatch(name) is not None and (is_folder or is_own(path, MAGIC))

    def _place(self, path: str) -> Path:
        """Return where a file stands. Raises FileExistsError if a link leads there."""
        target = self._path / path
        for folder in (target.parent.parent, target.parent):
            if folder.is_symlink():
                raise FileExistsError(errno.EEXIST, "a link", str(folder))
        return target

    @property
    def is_writer(self) -> bool:
        """True if this process writes and deletes."""
        return self._lock is not None

    def try_to_write(self) -> bool:
        """Become the writer, unless another process is. Raises ConfigError if the lock cannot be created."""
        if self._lock is None:
            lock = create_private(self._path / _LOCK, setting=_SETTING, head=b"")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                return False
            self._lock = lock
        return True

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def exists(self, path: str) -> bool:
        """True if there is a file of this name, good or not."""
        return os.access(self._path / path, os.F_OK)

    def read(self, path: str, into: memoryview, *, used_ns: int) -> bool:
        """Read a file of as many bytes as `into` has, which counts as used at that time; False if there is no file.

        Raises DamagedEntryError if it is no private file of ours of that size.
        """
        try:
            # Without O_NONBLOCK, opening a pipe that lies there would wait.
            descriptor = os.open(self._place(path), os.O_RDONLY | os.O_NONBLOCK | _FLAGS)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise DamagedEntryError(f"cannot be opened ({exc.strerror})") from exc
        try:
            _check(os.fstat(descriptor), into.nbytes)
            num_read = 0
            while num_read < into.nbytes and (count := os.readv(descriptor, [into[num_read:]])):
                num_read += count
            if num_read < into.nbytes:
                raise DamagedEntryError(f"ends after {num_read} bytes of {into.nbytes}")
            with contextlib.suppress(OSError):  # a read-only folder serves too
                os.utime(descriptor, ns=(used_ns, used_ns))
            return True
        except OSError as exc:
            raise DamagedEntryError(f"cannot be read ({exc.strerror})") from exc
        finally:
            os.close(descriptor)

    def write(self, path: str, pieces: Sequence[Any], *, used_ns: int) -> None:
        """Write a file at once. Raises OSError, FileExistsError if another's is there, and leaves nothing then."""
        target = self._place(path)
        draft = target.with_name(target.name + _DRAFT)
        for folder in (target.parent.parent, target.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        remove_own(draft, MAGIC)  # left by a process that was killed
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
        try:
            try:
                for piece in pieces:
                    view = memoryview(piece)
                    while view.nbytes:
                        view = view[os.write(descriptor, view) :]
                os.utime(descriptor, ns=(used_ns, used_ns))
            finally:
                os.close(descriptor)
            replace_own(draft, target, MAGIC)
        except BaseException:
            remove_own(draft, MAGIC)
            raise

    def remove(self, path: str) -> None:
        """Delete the file if an entry has this name."""
        with contextlib.suppress(FileExistsError):
            remove_own(self._place(path), MAGIC)

    def scan(self) -> Iterator[StoredEntry]:
        """Yield the entries of all namespaces and tenants. For the writer, which deletes drafts of killed processes."""
        num_names = 0
        for namespace in _folders(self._path):
            for tenant in _folders(self._path / namespace):
                with os.scandir(self._path / namespace / tenant) as names:
                    for item in names:
                        num_names += 1
                        if num_names > _MOST_NAMES:
                            return
                        path = f"{namespace}/{tenant}/{item.name}"
                        if not _FORM.fullmatch(path):
                            continue
                        if item.name.endswith(_DRAFT):
                            self.remove(path)
                        elif item.is_file(follow_symlinks=False):
                            status = item.stat(follow_symlinks=False)
                            yield StoredEntry(path, status.st_size, status.st_mtime_ns)


def _folders(path: Path) -> list[str]:
    try:
        with os.scandir(path) as items:
            return sorted(item.name for item in items if item.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _check(status: os.stat_result, num_bytes: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise DamagedEntryError("is no file")
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise DamagedEntryError("can be changed by others")
    if status.st_size != num_bytes:
        raise DamagedEntryError(f"has {status.st_size} bytes, not {num_bytes}")
