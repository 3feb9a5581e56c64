"""OpenedFile: tells whether the file of an open SQLite database is still where and as this process left it.

SQLite goes on writing into a deleted or moved file without an error, and these writes are lost. Only this process
writes to the file, so any other size than the last one shows a foreign change.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class FileChangedError(Exception):
    """A file was replaced or changed by another process."""


class _File(NamedTuple):
    device: int
    inode: int
    size: int

    @property
    def place(self) -> tuple[int, int]:
        """Identity of the file, whatever its name is."""
        return self.device, self.inode


class OpenedFile:
    """A database's file and its log. Without a path nothing is checked."""

    def __init__(self, path: Path | None, *, num_bytes: Callable[[], int]) -> None:
        """`num_bytes` returns the size of the database as SQLite knows it, pages in the log included."""
        self._num_bytes = num_bytes
        self._paths = [] if path is None else [path, Path(f"{os.path.realpath(path)}-wal")]
        self._left = [_file(path) for path in self._paths]

    def check(self) -> None:
        """Raise FileChangedError if another process replaced or changed a file."""
        for path, left in zip(self._paths, self._left, strict=True):
            found = _file(path)
            if left is None or found == left:
                continue
            if found is None or found.place != left.place:
                raise FileChangedError(f"{path} was deleted, moved or replaced; put it back, or start the server again")
            raise FileChangedError(f"{path} was changed by somebody else; start the server again")

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Check, then note how the block leaves the files."""
        self.check()
        try:
            yield
        finally:
            for number, (path, left) in enumerate(zip(self._paths, self._left, strict=True)):
                found = _file(path)
                is_cut = number == 0 and self._is_cut(left, found)
                if left is None or (found is not None and found.place == left.place and not is_cut):
                    self._left[number] = found  # otherwise somebody else interfered, which the next check finds

    def _is_cut(self, left: _File | None, found: _File | None) -> bool:
        """True if the database's file lost pages that are in use."""
        return None not in (left, found) and found.size < left.size and found.size < self._num_bytes()  # type: ignore[union-attr]


def _file(path: Path) -> _File | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return _File(found.st_dev, found.st_ino, found.st_size)
