"""Sealing: encrypts each stored job, file or batch with a key of its own, which is deleted with its row.

AES-256-GCM throughout. A job's random key is sealed by the key of `--results-key-file` and stored in the job's row,
before each text that it seals there. Segments hold events of several jobs and outlive them, but hold no keys: without
the row, a job's events in segments, in the log or in free pages cannot be read.

    sealed:              nonce (12 bytes), ciphertext (as long as the plaintext), tag (16 bytes)
    a text in a row:     base64 of the sealed key (60 bytes) and the sealed text
    events in segments:  base64 of the sealed events, without a key
    parts of files:      sealed; their key is stored before the file's name, and deleted with the name

Nonces are random, 96 bits: NIST SP 800-38D allows a key 2^32 of them. A job's key needs one per commit; the file's key
one per job, file and state of a batch, so 2^32 take 136 years at one a second. Besides the data each tag authenticates
its place: owner, id, field name, and the number of the first event or of the part. So no data can be moved to another
row, field, owner or position.
"""

import base64
import importlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from ....engine.errors import ConfigError
from ....engine.private_file import read_key
from .batch_rows import BatchRow, FileRow
from .checksum import DamagedError, checksum, is_whole
from .records import Event

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Row = TypeVar("Row", FileRow, BatchRow)
_log = logging.getLogger("splitfuse.results")
_KEY_BYTES = 32
_NONCE_BYTES = 12
OVERHEAD_BYTES = _NONCE_BYTES + 16  # bytes that sealing adds to the plaintext
_SEALED_KEY_BYTES = _KEY_BYTES + OVERHEAD_BYTES
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Seal:
    """Key of one job, file or batch. Each `name` stands for a place inside it."""

    def __init__(self, cipher: "AESGCM", sealed_key: bytes, place: str) -> None:
        self._cipher = cipher
        self._sealed_key = sealed_key
        self._place = place

    def seal(self, name: str, data: bytes) -> bytes:
        """Seal data without its key: readable while the row with the key exists."""
        return _sealed(self._cipher, data, f"{self._place}\0{name}")

    def open(self, name: str, sealed: bytes) -> bytes:
        """Inverse of `seal`. Raises DamagedError."""
        return _opened(self._cipher, sealed, f"{self._place}\0{name}")

    def seal_text(self, name: str, text: str) -> str:
        """Seal a text for the row, with the key before it."""
        return base64.b64encode(self._sealed_key + self.seal(name, text.encode())).decode()

    def seal_events(self, first: int, events: Sequence[Event]) -> str:
        """Seal events of a job. `first` is the number of the first one."""
        return base64.b64encode(self.seal(f"events {first}", _encode(events).encode())).decode()

    def open_events(self, first: int, sealed: object) -> list[Event]:
        """Inverse of `seal_events`. Raises DamagedError, also for text that is not sealed."""
        events: list[Event] = json.loads(self.open(f"events {first}", _decoded(sealed)))
        return events


class Sealing:
    """Key of a whole store."""

    def __init__(self, key: bytes) -> None:
        """Raises ConfigError if the package `cryptography` is missing."""
        try:
            module = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
        except ImportError as exc:
            raise ConfigError(f"--results-key-file ({exc}): pip install cryptography") from exc
        self._cipher_of: type[AESGCM] = module.AESGCM
        self._cipher = self._cipher_of(key)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the key from a file. Raises ConfigError."""
        return cls(read_key(path, setting="--results-key-file"))

    def new_seal(self, owner: str, item_id: str) -> Seal:
        """Create a seal with a new key for a job, file or batch."""
        key, place = os.urandom(_KEY_BYTES), _place(owner, item_id)
        return Seal(self._cipher_of(key), _sealed(self._cipher, key, place), place)

    def open_text(self, owner: str, item_id: str, name: str, text: str) -> tuple[str, Seal]:
        """Open a text of a row. Returns the text and its seal. Raises DamagedError."""
        place, sealed = _place(owner, item_id), _decoded(text)
        sealed_key = sealed[:_SEALED_KEY_BYTES]
        seal = Seal(self._cipher_of(_opened(self._cipher, sealed_key, place)), sealed_key, place)
        return seal.open(name, sealed[_SEALED_KEY_BYTES:]).decode(), seal

    def seal_row(self, row: Row) -> Row:
        """Seal a file's name or a batch's body with a new key."""
        item_id, name, text = _content(row)
        return _with_content(row, self.new_seal(row.owner, item_id).seal_text(name, text))

    def open_row(self, row: Row) -> Row:
        """Inverse of `seal_row`. Raises DamagedError."""
        item_id, name, text = _content(row)  # a deleted file has no text
        return _with_content(row, self.open_text(row.owner, item_id, name, text)[0]) if text else row

    def file_seal(self, file: FileRow) -> Seal | None:
        """Return the seal of a stored file, None if the file was deleted. Raises DamagedError."""
        if not file.filename:
            return None
        return self.open_text(file.owner, file.file_id, "filename", file.filename)[1]

    def mark(self) -> bytes:
        """Create the mark by which a store recognises its key."""
        return _sealed(self._cipher, b"", "mark")

    def has_made(self, mark: bytes) -> bool:
        """True if this key created the mark."""
        try:
            return _opened(self._cipher, mark, "mark") == b""
        except DamagedError:
            return False


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


def new_mark(sealing: Sealing | None, mark: bytes | None, *, is_new: bool, results: str) -> bytes | None:
    """Return the mark to write into a store that has `mark` now, None for no change.

    Raises ConfigError if another key made it.
    """
    if mark is None and sealing is not None and not is_new:
        raise ConfigError(
            f"--results {results}: it is not encrypted; name a new one, or leave --results-key-file out for this one"
        )
    if mark is not None and sealing is None:
        raise ConfigError(f"--results {results}: it is encrypted; give its key with --results-key-file FILE")
    if mark is not None and sealing is not None and not sealing.has_made(mark):
        raise ConfigError(f"--results {results}: it is encrypted with another key than --results-key-file holds")
    return None if mark is not None or sealing is None else sealing.mark()


def _sealed(cipher: "AESGCM", data: bytes, place: str) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, data, place.encode())


def _opened(cipher: "AESGCM", sealed: bytes, place: str) -> bytes:
    from cryptography.exceptions import InvalidTag  # installed, because the cipher needs it too

    try:
        return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.encode())
    except (InvalidTag, ValueError) as exc:  # ValueError: too short
        raise DamagedError from exc


def _decoded(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True)  # type: ignore[arg-type]  # stored values may have any type
    except (TypeError, ValueError) as exc:
        raise DamagedError from exc


def _place(owner: str, item_id: str) -> str:
    return f"{owner}\0{item_id}"


def _content(row: FileRow | BatchRow) -> tuple[str, str, str]:
    """Return the row's id, and the name and text of the field that is sealed."""
    if isinstance(row, FileRow):
        return row.file_id, "filename", row.filename
    return row.batch_id, "body", row.body


def _with_content(row: Row, text: str) -> Row:
    return replace(row, filename=text) if isinstance(row, FileRow) else replace(row, body=text)
