"""Entry: one block, or one recurrent state, as the bytes of a file. Pure bytes, no files.

    magic, version, length of the payload | SHA-256 of header, identity and payload | payload

The identity is what the entry is found by: namespace (model, arithmetic, layout), kind, chained hash and the block's
own tokens. It is not in the file, but the checksum covers it, so an entry under another name, of another model or of
other tokens is as good as a damaged one.
"""

import hashlib
import hmac
import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

MAGIC = b"SFKV"
_VERSION = 1
_HEADER = struct.Struct("<4sIQ")  # magic, version, bytes of the payload
_DIGEST_BYTES = 32
BLOCK, STATE = b"block", b"state"


class DamagedEntryError(Exception):
    """The file does not hold this entry; the message says why."""


class Identity(NamedTuple):
    """What an entry is found by. `tokens`: the packed ids of the block, at whose end a state stands."""

    kind: bytes
    block_hash: bytes
    tokens: bytes


def packed(token_ids: Sequence[int]) -> bytes:
    """Pack token ids as PrefixCache does."""
    return array("i", token_ids).tobytes()


class EntryCodec:
    """Codec of one tenant's entries in one namespace."""

    def __init__(self, namespace: bytes, tenant: str) -> None:
        self._namespace = namespace
        self._name_key = hashlib.sha256(b"name" + namespace).digest()
        self.tenant_name = hashlib.sha256(b"tenant " + tenant.encode()).hexdigest()[:32]

    def name(self, identity: Identity) -> str:
        """Return the file's name."""
        return hmac.digest(self._name_key, identity.kind + identity.block_hash, "sha256").hex()[:40]

    def num_bytes(self, payload_bytes: int) -> int:
        """Return the size of the file."""
        return _HEADER.size + _DIGEST_BYTES + payload_bytes

    def encode(self, identity: Identity, payload: Any) -> list[Any]:
        """Return the file's contents in pieces. `payload`: any contiguous buffer."""
        header = _HEADER.pack(MAGIC, _VERSION, memoryview(payload).nbytes)
        return [header, self._digest(header, identity, payload), payload]

    def decode(self, identity: Identity, data: Any, payload_bytes: int) -> Any:
        """Return the payload of a file's contents. Raises DamagedEntryError."""
        view = memoryview(data)
        if view.nbytes != self.num_bytes(payload_bytes):
            raise DamagedEntryError(f"has {view.nbytes} bytes, not {self.num_bytes(payload_bytes)}")
        header = bytes(view[: _HEADER.size])
        rest = view[_HEADER.size :]
        payload = rest[_DIGEST_BYTES:]
        if header != _HEADER.pack(MAGIC, _VERSION, payload_bytes):
            raise DamagedEntryError("has another header")
        if not hmac.compare_digest(rest[:_DIGEST_BYTES], self._digest(header, identity, payload)):
            raise DamagedEntryError("has another checksum")
        return payload

    def _digest(self, header: bytes, identity: Identity, payload: Any) -> bytes:
        hashed = hashlib.sha256(header)
        for part in (self._namespace, *identity):
            hashed.update(len(part).to_bytes(4, "little") + part)
        hashed.update(payload)
        return hashed.digest()
