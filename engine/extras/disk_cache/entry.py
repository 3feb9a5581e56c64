"""Entry: one block, or one recurrent state, as the bytes of a file. Pure bytes, no files.

    plain     magic, mode 0, length of the payload | SHA-256 of header, identity and payload | payload
    sealed    magic, mode 1, length of the payload | nonce | AES-256-GCM of the payload, authenticating header, identity

The identity is what the entry is found by: namespace (model, arithmetic, layout), kind, chained hash and the block's
own tokens. It is not in the file, but the checksum covers it, so an entry under another name, of another model or of
other tokens is as good as a damaged one. Names are hashes; with a key they are keyed, so a name confirms no guess of a
prompt.

Nonces are random, 96 bits, and each tenant has a key of its own: NIST SP 800-38D allows a key 2^32 of them.
"""

import hashlib
import hmac
import importlib
import os
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...errors import ConfigError

MAGIC = b"SFKV"
_VERSION = 1
_HEADER = struct.Struct("<4sHHQ")  # magic, version, mode, bytes of the payload
_PLAIN, _SEALED = 0, 1
_DIGEST_BYTES = 32
_NONCE_BYTES, _TAG_BYTES = 12, 16
BLOCK, STATE = b"block", b"state"
Memory = Callable[[int], Any]  # makes a writable buffer of so many bytes


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

    def __init__(self, namespace: bytes, tenant: str, key: bytes | None = None) -> None:
        """Raises ConfigError if there is a key and the package `cryptography` is missing."""
        self._namespace = namespace
        self._name_key = hashlib.sha256(b"name" + namespace).digest()
        self.tenant_name = hashlib.sha256(b"tenant " + tenant.encode()).hexdigest()[:32]
        self._cipher: Any = None
        if key is not None:
            own = hmac.digest(key, b"prefix cache of " + tenant.encode(), "sha256")
            self._name_key = hmac.digest(own, b"name" + namespace, "sha256")
            self.tenant_name = hmac.digest(key, b"tenant " + tenant.encode(), "sha256").hex()[:32]
            self._cipher = _aead()(own)

    def name(self, identity: Identity) -> str:
        """Return the file's name."""
        return hmac.digest(self._name_key, identity.kind + identity.block_hash, "sha256").hex()[:40]

    def num_bytes(self, payload_bytes: int) -> int:
        """Return the size of the file."""
        extra = _DIGEST_BYTES if self._cipher is None else _NONCE_BYTES + _TAG_BYTES
        return _HEADER.size + extra + payload_bytes

    def encode(self, identity: Identity, payload: Any) -> list[Any]:
        """Return the file's contents in pieces. `payload`: any contiguous buffer."""
        mode = _PLAIN if self._cipher is None else _SEALED
        header = _HEADER.pack(MAGIC, _VERSION, mode, memoryview(payload).nbytes)
        if self._cipher is None:
            return [header, self._digest(header, identity, payload), payload]
        nonce = os.urandom(_NONCE_BYTES)
        return [header, nonce, self._cipher.encrypt(nonce, payload, header + self._bound(identity))]

    def decode(self, identity: Identity, data: Any, payload_bytes: int, *, memory: Memory = bytearray) -> Any:
        """Return the payload of a file's contents, decrypted into `memory` if sealed. Raises DamagedEntryError."""
        view = memoryview(data)
        if view.nbytes != self.num_bytes(payload_bytes):
            raise DamagedEntryError(f"has {view.nbytes} bytes, not {self.num_bytes(payload_bytes)}")
        header = bytes(view[: _HEADER.size])
        mode = _PLAIN if self._cipher is None else _SEALED
        if header != _HEADER.pack(MAGIC, _VERSION, mode, payload_bytes):
            raise DamagedEntryError("has another header")
        rest = view[_HEADER.size :]
        if self._cipher is None:
            payload = rest[_DIGEST_BYTES:]
            if not hmac.compare_digest(rest[:_DIGEST_BYTES], self._digest(header, identity, payload)):
                raise DamagedEntryError("has another checksum")
            return payload
        from cryptography.exceptions import InvalidTag  # installed, because the cipher needs it too

        try:
            sealed = bytes(rest[:_NONCE_BYTES]), rest[_NONCE_BYTES:], header + self._bound(identity)
            if not hasattr(self._cipher, "decrypt_into"):  # cryptography before 47
                return self._cipher.decrypt(*sealed)
            payload = memory(payload_bytes)
            self._cipher.decrypt_into(*sealed, payload)
            return payload
        except InvalidTag as exc:
            raise DamagedEntryError("cannot be decrypted") from exc

    def _digest(self, header: bytes, identity: Identity, payload: Any) -> bytes:
        hashed = hashlib.sha256(header + self._bound(identity))
        hashed.update(payload)
        return hashed.digest()

    def _bound(self, identity: Identity) -> bytes:
        parts = (self._namespace, *identity)
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def _aead() -> Any:
    try:
        return importlib.import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
    except ImportError as exc:
        raise ConfigError(f"--prefix-cache-key-file ({exc}): pip install cryptography") from exc
