"""Temporary folder of this process; folders that killed processes left are removed with it."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...engine.private_file import HEAD, hold_folder, remove_abandoned

_PREFIX = "splitfuse-"
# Files in it: ours, SQLite's with their logs and indexes, blocks of a prefix cache.
_HEADS = (HEAD, b"SQLite format 3\0", b"7\x7f\x06\x82", b"7\x7f\x06\x83", b"\x18\xe2\x2d\0", b"SFKV")


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make the folder for the block, and remove what dead processes left in theirs."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        remove_abandoned(path, _HEADS)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, hold_folder(Path(name)):
        yield Path(name)
