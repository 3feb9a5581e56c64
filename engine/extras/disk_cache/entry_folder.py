"""EntryFolder: the files of a prefix cache. One server writes and deletes, any number of servers read.

    PATH/writer.lock                    locked (flock) by the server that writes, for as long as its process lives
    PATH/<namespace>/<tenant>/<name>    one entry, complete from the moment it has this name

An entry is written beside its place and renamed, so kill -9 leaves no half of one; what a power cut leaves is found by
the checksum. Nothing is synced: an entry that is lost is computed again. Files are 0600 in folders 0700, no link is
followed, and files of other users, or that others can change, are not read.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import ConfigError
from ...private_file import create_private
from .entry import DamagedEntryError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_SETTING = "--prefix-cache-dir"
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_DRAFT = ".draft"
_MOST_NAMES = 2_000_000  # a folder of more is not ours


class StoredEntry(NamedTuple):
    """File of an entry, relative to the folder."""

    path: str
    num_bytes: int
    used_ns: int


class EntryFolder:
    """Folder of entries, made if it is not there. Paths are relative to it: namespace/tenant/name."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if others could change its files."""
        if fcntl is None:
            raise ConfigError(f"{_SETTING} is not built for Windows; leave it out")
        self._path = path
        self._lock: int | None = None
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = path.lstat()
        except OSError as exc:
            raise ConfigError(f"{_SETTING} {path}: cannot be made ({exc.strerror})") from exc
        if not stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{_SETTING} {path}: no folder, or a link to one; name the folder itself")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise ConfigError(f"{_SETTING} {path}: others can write it, and so change answers; chmod 700 it")

    @property
    def is_writer(self) -> bool:
        """True if this process writes and deletes."""
        return self._lock is not None

    def try_to_write(self) -> bool:
        """Become the writer, unless another process is. Raises ConfigError if the lock cannot be created."""
        if self._lock is None:
            lock = create_private(self._path / "writer.lock", setting=_SETTING)
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
            descriptor = os.open(self._path / path, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)
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
        """Write a file at once. Raises OSError, and leaves nothing then."""
        target = self._path / path
        draft = target.with_name(target.name + _DRAFT)
        for folder in (target.parent.parent, target.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()  # left by a process that was killed
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
            draft.rename(target)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise

    def remove(self, path: str) -> None:
        """Delete whatever has this name."""
        target = self._path / path
        try:
            target.unlink(missing_ok=True)
        except IsADirectoryError:
            shutil.rmtree(target, ignore_errors=True)
        except OSError:
            pass  # it will be refused again

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
