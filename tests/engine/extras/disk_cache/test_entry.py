"""Entries: what is written comes back, and nothing else does."""

import random

import pytest

from splitfuse.engine.extras.disk_cache.entry import BLOCK, STATE, DamagedEntryError, EntryCodec, Identity, packed

KEY = bytes(range(32))
IDENTITY = Identity(BLOCK, b"h" * 32, packed([1, 2, 3, 4]))
PAYLOAD = random.Random(1).randbytes(1000)


def codec(key: bytes | None, *, namespace: bytes = b"model", tenant: str = "a") -> EntryCodec:
    return EntryCodec(namespace, tenant, key)


def written(codec: EntryCodec) -> bytearray:
    return bytearray(b"".join(bytes(piece) for piece in codec.encode(IDENTITY, PAYLOAD)))


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
def test_an_entry_comes_back(key: bytes | None) -> None:
    data = written(codec(key))
    assert len(data) == codec(key).num_bytes(len(PAYLOAD))
    assert bytes(codec(key).decode(IDENTITY, data, len(PAYLOAD))) == PAYLOAD
    assert (PAYLOAD in bytes(data)) == (key is None)


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
def test_no_changed_byte_passes(key: bytes | None) -> None:
    data = written(codec(key))
    for index in range(len(data)):
        data[index] ^= 0x10
        with pytest.raises(DamagedEntryError):
            codec(key).decode(IDENTITY, data, len(PAYLOAD))
        data[index] ^= 0x10
    for length in range(len(data)):
        with pytest.raises(DamagedEntryError):
            codec(key).decode(IDENTITY, data[:length], len(PAYLOAD))


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
@pytest.mark.parametrize(
    "identity",
    [
        IDENTITY._replace(kind=STATE),
        IDENTITY._replace(block_hash=b"g" * 32),
        IDENTITY._replace(tokens=packed([1, 2, 3, 5])),
        Identity(BLOCK, b"h" * 31, b"h" + IDENTITY.tokens),
    ],
)
def test_an_entry_is_no_other_one(key: bytes | None, identity: Identity) -> None:
    with pytest.raises(DamagedEntryError):
        codec(key).decode(identity, written(codec(key)), len(PAYLOAD))


def test_models_tenants_and_keys_share_nothing() -> None:
    codecs = [codec(None), codec(None, namespace=b"other"), codec(KEY), codec(KEY, tenant="b"), codec(KEY[::-1])]
    codecs += [codec(KEY, namespace=b"other")]
    assert len({one.name(IDENTITY) for one in codecs}) == len(codecs)
    for writer in codecs:
        for reader in (reader for reader in codecs if reader is not writer):
            with pytest.raises(DamagedEntryError):
                reader.decode(IDENTITY, written(writer), len(PAYLOAD))


def test_names_of_tenants_are_not_in_paths() -> None:
    assert "secret" not in codec(None, tenant="secret").tenant_name
    assert codec(None).tenant_name != codec(KEY).tenant_name != codec(KEY, tenant="b").tenant_name
