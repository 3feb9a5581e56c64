"""Entries: what is written comes back, and nothing else does."""

import random

import pytest

from splitfuse.engine.extras.disk_cache.entry import BLOCK, STATE, DamagedEntryError, EntryCodec, Identity, packed

IDENTITY = Identity(BLOCK, b"h" * 32, packed([1, 2, 3, 4]))
PAYLOAD = random.Random(1).randbytes(1000)
CODEC = EntryCodec(b"model", "a")


def written(codec: EntryCodec = CODEC) -> bytearray:
    return bytearray(b"".join(bytes(piece) for piece in codec.encode(IDENTITY, PAYLOAD)))


def test_an_entry_comes_back() -> None:
    data = written()
    assert len(data) == CODEC.num_bytes(len(PAYLOAD))
    assert bytes(CODEC.decode(IDENTITY, data, len(PAYLOAD))) == PAYLOAD


def test_no_changed_byte_passes() -> None:
    data = written()
    for index in range(len(data)):
        data[index] ^= 0x10
        with pytest.raises(DamagedEntryError):
            CODEC.decode(IDENTITY, data, len(PAYLOAD))
        data[index] ^= 0x10
    for length in range(len(data)):
        with pytest.raises(DamagedEntryError):
            CODEC.decode(IDENTITY, data[:length], len(PAYLOAD))


@pytest.mark.parametrize(
    "identity",
    [
        IDENTITY._replace(kind=STATE),
        IDENTITY._replace(block_hash=b"g" * 32),
        IDENTITY._replace(tokens=packed([1, 2, 3, 5])),
        Identity(BLOCK, b"h" * 31, b"h" + IDENTITY.tokens),
    ],
)
def test_an_entry_is_no_other_one(identity: Identity) -> None:
    with pytest.raises(DamagedEntryError):
        CODEC.decode(identity, written(), len(PAYLOAD))


def test_models_share_nothing() -> None:
    other = EntryCodec(b"other", "a")
    assert CODEC.name(IDENTITY) != other.name(IDENTITY)
    with pytest.raises(DamagedEntryError):
        other.decode(IDENTITY, written(), len(PAYLOAD))


def test_names_of_tenants_are_not_in_paths() -> None:
    secret = EntryCodec(b"model", "secret")
    assert "secret" not in secret.tenant_name != CODEC.tenant_name
