"""Idempotency keys: a request that is repeated with its key is answered with the job of its first arrival."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakValueDictionary

from ...engine.errors import InvalidRequestError

MAX_CHARS = 255


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Name that a client gives a request, by which a repeated request is known."""

    digest: bytes  # SHA-256 of the key, for the key may be long, or secret
    body_digest: bytes

    @classmethod
    def read(cls, header: str | None, *, path: str, body: Mapping[str, Any]) -> Self | None:
        """Read the key in the header, if there is one. Raises InvalidRequestError."""
        if header is None:
            return None
        if not (1 <= len(header) <= MAX_CHARS and header.isascii() and header.isprintable() and not header.isspace()):
            raise InvalidRequestError(
                f"Idempotency-Key must be 1 to {MAX_CHARS} visible ASCII characters", param="Idempotency-Key"
            )
        text = json.dumps([path, body], sort_keys=True, separators=(",", ":"))
        return cls(hashlib.sha256(header.encode()).digest(), hashlib.sha256(text.encode()).digest())


class KeyLocks:
    """Locks that let one request at a time proceed for each owner's key; others wait for the first."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, bytes], asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def hold(self, owner: str, key: IdempotencyKey) -> AsyncIterator[None]:
        """Hold the lock of this key."""
        lock = self._locks.setdefault((owner, key.digest), asyncio.Lock())
        async with lock:
            yield
