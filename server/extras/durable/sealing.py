"""Sealing: what is stored of a job, a file or a batch is encrypted with a key of its own, deleted with its row.

AES-256-GCM throughout. A job's random key is sealed by the key of `--results-key-file` and stands in the job's row,
before each text that it seals there. Segments hold events of several jobs and outlive them, but hold no keys: without
the row its events there, in the log or in free pages cannot be read.

    sealed:              nonce (12 bytes), ciphertext (as long as the plaintext), tag (16 bytes)
    a text in a row:     base64 of the sealed key (60 bytes) and the sealed text
    events in segments:  base64 of the sealed events, which have no key beside them
    parts of files:      sealed; their key stands before the file's name and is deleted with that

Nonces are random, 96 bits: NIST SP 800-38D allows a key 2^32 of them. A job's key needs one per commit; the file's key
one per job, file and state of a batch, so 2^32 take 136 years at one a second. Beside the data each tag authenticates
its place: owner, id, the field's name, of events the number of the first, of parts their number. So nothing can be
moved to another row, field, owner or position.
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

from ....engine.errors import ConfigError, RequestFailedError, new_error_id
from ...http.keys import is_open_to_others
from .batch_rows import BatchRow, FileRow
from .records import Event

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Row = TypeVar("Row", FileRow, BatchRow)
_log = logging.getLogger("splitfuse.results")
_KEY_BYTES = 32
_NONCE_BYTES = 12
OVERHEAD_BYTES = _NONCE_BYTES + 16  # of what is sealed, beyond the plaintext
_SEALED_KEY_BYTES = _KEY_BYTES + OVERHEAD_BYTES
_encode = json.JSONEncoder(separators=(",", ":")).encode


class DamagedError(RequestFailedError):
    """What is stored was changed after it was written, or comes from another place."""

    def __init__(self) -> None:
        text = "what the server had kept of this was changed on disk and cannot be read; delete it"
        super().__init__(text, error_id=new_error_id(), code="damaged")


class Seal:
    """The key of one job, file or batch. Every `name` stands for a place within it."""

    def __init__(self, cipher: "AESGCM", sealed_key: bytes, place: str) -> None:
        self._cipher = cipher
        self._sealed_key = sealed_key
        self._place = place

    def seal(self, name: str, data: bytes) -> bytes:
        """Without the key: readable as long as the row with the key is there."""
        return _sealed(self._cipher, data, f"{self._place}\0{name}")

    def open(self, name: str, sealed: bytes) -> bytes:
        """What was sealed under this name. Raises DamagedError."""
        return _opened(self._cipher, sealed, f"{self._place}\0{name}")

    def seal_text(self, name: str, text: str) -> str:
        """With the key before it: for the row."""
        return base64.b64encode(self._sealed_key + self.seal(name, text.encode())).decode()

    def seal_events(self, first: int, events: Sequence[Event]) -> str:
        """Events of a job, of which this is the number of the first."""
        return base64.b64encode(self.seal(f"events {first}", _encode(events).encode())).decode()

    def open_events(self, first: int, sealed: object) -> list[Event]:
        """What was sealed so. Raises DamagedError, also for what is not sealed."""
        events: list[Event] = json.loads(self.open(f"events {first}", _decoded(sealed)))
        return events


class Sealing:
    """The key of a whole store."""

    def __init__(self, key: bytes) -> None:
        """Raises ConfigError where the package is missing."""
        try:
            module = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
        except ImportError as exc:
            raise ConfigError(f"--results-key-file ({exc}): pip install cryptography") from exc
        self._cipher_of: type[AESGCM] = module.AESGCM
        self._cipher = self._cipher_of(key)

    @classmethod
    def read(cls, path: Path) -> Self:
        """With the key of a file. Raises ConfigError."""
        return cls(_read_key(path))

    def new_seal(self, owner: str, item_id: str) -> Seal:
        """A new key for a job, file or batch."""
        key, place = os.urandom(_KEY_BYTES), _place(owner, item_id)
        return Seal(self._cipher_of(key), _sealed(self._cipher, key, place), place)

    def open_text(self, owner: str, item_id: str, name: str, text: str) -> tuple[str, Seal]:
        """The text that stands in a row, and the key that it has. Raises DamagedError."""
        place, sealed = _place(owner, item_id), _decoded(text)
        sealed_key = sealed[:_SEALED_KEY_BYTES]
        seal = Seal(self._cipher_of(_opened(self._cipher, sealed_key, place)), sealed_key, place)
        return seal.open(name, sealed[_SEALED_KEY_BYTES:]).decode(), seal

    def seal_row(self, row: Row) -> Row:
        """A file with its name, or a batch with its body, sealed with a new key."""
        item_id, name, text = _content(row)
        return _with_content(row, self.new_seal(row.owner, item_id).seal_text(name, text))

    def open_row(self, row: Row) -> Row:
        """The row that was sealed. Raises DamagedError."""
        item_id, name, text = _content(row)  # a deleted file has no text
        return _with_content(row, self.open_text(row.owner, item_id, name, text)[0]) if text else row

    def open_rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same of many; damaged ones are logged and left out."""
        for row in rows:
            try:
                yield self.open_row(row)
            except DamagedError as exc:
                _log.error("results: %s…: error id %s: %s", _content(row)[0][:12], exc.error_id, exc)

    def file_seal(self, file: FileRow) -> Seal | None:
        """The key of a file as it is stored; None if it was deleted. Raises DamagedError."""
        if not file.filename:
            return None
        return self.open_text(file.owner, file.file_id, "filename", file.filename)[1]

    def mark(self) -> bytes:
        """What a store knows its key by."""
        return _sealed(self._cipher, b"", "mark")

    def has_made(self, mark: bytes) -> bool:
        """Whether it is this key's."""
        try:
            return _opened(self._cipher, mark, "mark") == b""
        except DamagedError:
            return False


def new_mark(sealing: Sealing | None, mark: bytes | None, *, is_new: bool, results: str) -> bytes | None:
    """The mark that a store is to get; `mark`: what it has. Raises ConfigError if it is not this key's."""
    if mark is None and sealing is not None and not is_new:
        raise ConfigError(
            f"--results {results}: it is not encrypted; name a new one, or leave --results-key-file out for this one"
        )
    if mark is not None and sealing is None:
        raise ConfigError(f"--results {results}: it is encrypted; give its key with --results-key-file FILE")
    if mark is not None and sealing is not None and not sealing.has_made(mark):
        raise ConfigError(f"--results {results}: it is encrypted with another key than --results-key-file holds")
    return None if mark is not None or sealing is None else sealing.mark()


def _read_key(path: Path) -> bytes:
    make_one = f"(umask 077; openssl rand -base64 32 > {path})"
    try:
        if is_open_to_others(path):
            raise ConfigError(f"--results-key-file {path}: every user can read it: chmod 600 {path}")
        text = path.read_text(encoding="ascii").strip()
        key = bytes.fromhex(text) if len(text) == 2 * _KEY_BYTES else base64.b64decode(text, validate=True)
    except FileNotFoundError as exc:
        raise ConfigError(
            f"--results-key-file {path}: no such file; make one and keep a copy, for without it all is lost: {make_one}"
        ) from exc
    except OSError as exc:
        raise ConfigError(f"--results-key-file {path}: cannot be read ({exc.strerror})") from exc
    except ValueError:  # not ASCII, not hexadecimal, not base64
        key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"--results-key-file {path} must hold 32 bytes as base64 or hexadecimal digits: {make_one}")
    return key


def _sealed(cipher: "AESGCM", data: bytes, place: str) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, data, place.encode())


def _opened(cipher: "AESGCM", sealed: bytes, place: str) -> bytes:
    from cryptography.exceptions import InvalidTag  # is there, for the cipher is

    try:
        return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.encode())
    except (InvalidTag, ValueError) as exc:  # ValueError: it is too short
        raise DamagedError from exc


def _decoded(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True)  # type: ignore[arg-type]  # whatever is stored
    except (TypeError, ValueError) as exc:
        raise DamagedError from exc


def _place(owner: str, item_id: str) -> str:
    return f"{owner}\0{item_id}"


def _content(row: FileRow | BatchRow) -> tuple[str, str, str]:
    """Its id, and the name and the text of the field that tells of its content."""
    if isinstance(row, FileRow):
        return row.file_id, "filename", row.filename
    return row.batch_id, "body", row.body


def _with_content(row: Row, text: str) -> Row:
    return replace(row, filename=text) if isinstance(row, FileRow) else replace(row, body=text)
