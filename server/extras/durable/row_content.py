"""Content of the rows of files and batches: sealed or with a checksum when written, checked when read."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from .batch_rows import BatchRow, FileRow
from .checksum import DamagedError, checksum, is_whole
from .sealing import Sealing

Row = TypeVar("Row", FileRow, BatchRow)
_log = logging.getLogger("splitfuse.results")


def sealed_row(row: Row, sealing: Sealing | None) -> Row:
    """Return the row to write. A checksum of a text that is sealed could confirm a guess; its tag takes that place."""
    return replace(row, row_sum=checksum(*row.checked())) if sealing is None else sealing.seal_row(row)


def opened_row(row: Row, sealing: Sealing | None) -> Row:
    """Inverse of `sealed_row`. Raises DamagedError."""
    if sealing is not None:
        return sealing.open_row(row)
    is_deleted = isinstance(row, FileRow) and row.state == "deleted"  # its name is gone
    if not is_deleted and not is_whole(row.row_sum, *row.checked()):
        raise DamagedError
    return row


def opened_rows(rows: Iterable[Row], sealing: Sealing | None) -> Iterator[Row]:
    """Open many rows. Damaged rows are logged and left out."""
    for row in rows:
        try:
            yield opened_row(row, sealing)
        except DamagedError as exc:
            item_id = str(row.file_id if isinstance(row, FileRow) else row.batch_id)
            _log.error("results: %s…: error id %s: %s", item_id[:12], exc.error_id, exc)


def whole_parts(file_id: str, parts: Iterable[tuple[int, bytes, int | None]]) -> list[tuple[int, bytes]]:
    """Return the parts of a file as they were written. Raises DamagedError."""
    whole = []
    for number, body, part_sum in parts:
        if not is_whole(part_sum, file_id, number, body):
            raise DamagedError
        whole.append((number, body))
    return whole
