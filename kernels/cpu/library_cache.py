"""LibraryCache: compiled libraries in a private folder of the user, and ObjectCache, their parts. Imports no torch.

Only a library that was built here is loaded: a file beside it has its SHA-256, and folders and files that another user
owns or can write to are refused. One process builds at a time; the others wait for its library.
"""

import contextlib
import ctypes
import hashlib
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO

_log = logging.getLogger("splitfuse.kernels")

# Function that compiles in a folder and returns the path of the library.
Compile = Callable[[Path], Path]

_POLL_S = 0.05
_BUILD_PREFIX = "build-"
_MARKER = "splitfuse-build"  # in each folder of a build, so that no other folder of such a name is deleted


class LibraryCache:
    """Cache of the libraries in one folder, by file name."""

    def __init__(self, folder: Path, *, max_wait_s: float = 600.0) -> None:
        """`max_wait_s`: longest wait for another process that builds."""
        self._folder = folder
        self._max_wait_s = max_wait_s

    def load(self, name: str, compile_in: Compile) -> ctypes.CDLL:
        """Load a library; compile it first if it is missing or its digest is wrong.

        Raises OSError and the errors of `compile_in`.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_private(self._folder, self._folder.stat())
        try:
            data = _read_checked(self._folder / name)
        except OSError:
            with self._lock():
                data = self._read_or_build(name, compile_in)
        return _load(data, self._folder / name)

    def _read_or_build(self, name: str, compile_in: Compile) -> bytes:
        try:
            return _read_checked(self._folder / name)  # another process may have built it meanwhile
        except FileNotFoundError:
            pass
        except OSError as exc:
            _log.warning("the native CPU library is built again: %s", exc)
        return self._build(name, compile_in)

    def _build(self, name: str, compile_in: Compile) -> bytes:
        for left in self._folder.glob(f"{_BUILD_PREFIX}*"):  # left by a killed process
            if (left / _MARKER).is_file() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_BUILD_PREFIX, dir=self._folder) as scratch:
            Path(scratch, _MARKER).touch()
            data = compile_in(Path(scratch)).read_bytes()
            _write_checked(self._folder / name, data, scratch=Path(scratch))
        return data

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Keep other processes from building. The system releases the lock when this process ends, however it ends."""
        with (self._folder / "lock").open("a") as file:
            deadline = time.monotonic() + self._max_wait_s
            if not _try_lock(file):
                _log.warning("another process builds the native CPU library; waiting for it")
                while not _try_lock(file):
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"another process has held {file.name} for {self._max_wait_s:.0f} s; end it")
                    time.sleep(_POLL_S)
            yield


class ObjectCache:
    """Cache of object files in a LibraryCache's folder, so that an interrupted build goes on.

    A key changes with all that decides the content.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def restore(self, key: str, path: Path) -> bool:
        """Write the object file of a key to a path. Returns False if there is none that can be trusted."""
        try:
            path.write_bytes(_read_checked(self._path(key)))
        except OSError:
            return False
        return True

    def keep(self, key: str, path: Path) -> None:
        """Keep the object file at a path, which is in a folder of the same file system."""
        _write_checked(self._path(key), path.read_bytes(), scratch=path.parent)

    def drop_others(self, keys: Collection[str]) -> None:
        """Remove all object files except the keys', if the digest beside a file proves that it was built here."""
        kept = {self._path(key).name for key in keys}
        for path in self._folder.glob("object-*.o"):
            with contextlib.suppress(OSError):
                if path.name not in kept:
                    _read_checked(path)
                    path.unlink()
                    _digest_path(path).unlink()

    def _path(self, key: str) -> Path:
        return self._folder / f"object-{key}.o"


def _read_checked(path: Path) -> bytes:
    """Return the bytes of a file that was built here. Raises OSError if it is missing or cannot be trusted."""
    data = _read_private(path)
    if _read_private(_digest_path(path)) != _digest(data, path.name):
        raise OSError(f"{path} is not the built file")
    return data


def _write_checked(path: Path, data: bytes, *, scratch: Path) -> None:
    """Write a file for `_read_checked`. `scratch`: a folder of the same file system."""
    _write_whole(_digest_path(path), _digest(data, path.name), scratch=scratch)
    _write_whole(path, data, scratch=scratch)


def _try_lock(file: IO[str]) -> bool:
    import fcntl  # Windows has none

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_private(path: Path) -> bytes:
    if path.is_fifo():
        raise OSError(f"{path} is a pipe")
    with path.open("rb") as file:
        _check_private(path, os.fstat(file.fileno()))
        return file.read()


def _check_private(path: Path, found: os.stat_result) -> None:
    """Raise PermissionError if a user other than root could have written the file or folder."""
    way_out = "remove it, or set XDG_CACHE_HOME to a folder of your own"
    if found.st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{path} belongs to another user; {way_out}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"other users can write to {path}; {way_out}")


def _digest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _digest(data: bytes, name: str) -> bytes:
    """Return the digest in the format of `sha256sum`."""
    return f"{hashlib.sha256(data).hexdigest()}  {name}\n".encode()


def _write_whole(path: Path, data: bytes, *, scratch: Path) -> None:
    """Write a file atomically: after any failure, even a power cut, it has its old or its new content."""
    fresh = scratch / path.name
    fresh.touch(mode=0o600)
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)


def _load(data: bytes, path: Path) -> ctypes.CDLL:
    """Load a library from memory: if its file were mapped and then truncated, SIGBUS would end the process."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # some systems let no memory file be executed
            file = os.memfd_create("splitfuse-native")
            with open(file, "wb", closefd=False) as memory:
                memory.write(data)
            # The file stays open: the loader identifies a library by its path, so the path must not be reused.
            return ctypes.CDLL(f"/proc/self/fd/{file}")
    return ctypes.CDLL(str(path))
