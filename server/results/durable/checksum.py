"""Checksums of rows find bits that flipped on the disk. They keep nobody from changing a row on purpose."""

import struct
import zlib
from collections.abc import Iterable

from ....engine.errors import RequestFailedError, new_error_id


class DamagedError(RequestFailedError):
    """Stored data was changed after it was written, or comes from another place."""

    def __init__(self) -> None:
        text = "what the server had kept of this was changed on disk and cannot be read; delete it"
        super().__init__(text, error_id=new_error_id(), code="damaged")


def checksum(*values: object) -> int:
    """Return the CRC-32 of a row's values: numbers, texts, bytes and None."""
    crc = 0
    for value in values:
        data = _bytes_of(value)
        crc = zlib.crc32(data, zlib.crc32(b"%d " % len(data), crc))
    return crc


def is_whole(stored: object, *values: object) -> bool:
    """True if the values have the stored checksum. With None, as in rows of earlier versions, texts must be texts."""
    if stored is None:
        return all(_is_text(value) for value in values if isinstance(value, str))
    return stored == checksum(*values)


def whole_parts(file_id: str, parts: Iterable[tuple[int, bytes, int | None]]) -> list[tuple[int, bytes]]:
    """Return the numbers and contents of a file's parts without their checksums. Raises DamagedError."""
    whole = []
    for number, body, part_sum in parts:
        if not is_whole(part_sum, file_id, number, body):
            raise DamagedError
        whole.append((number, body))
    return whole


def _bytes_of(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, int | float):  # a bool is 0 or 1 in SQLite, and a whole number may come back as a float
        return struct.pack("d", value)
    return str(value).encode(errors="surrogateescape")


def _is_text(text: str) -> bool:
    """False if the store held bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
