"""Mutations of a GGUF file's parts: a file that is well formed, but whose metadata and tensor infos lie."""

import random
import struct
from dataclasses import dataclass
from typing import Self

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_COUNTS = (0, 1, 2**14 + 1, 2**31, 2**32, 2**63, 2**64 - 1)
_DIMS = (0, 1, 2, 3, 31, 32, 33, 256, 2**20, 2**32, 2**62, 2**64 - 1)
_FLOATS = (0.0, -1.0, 1e-45, 3e38, float("nan"), float("inf"))
_TEXTS = (b"", b"llama", b"gemma2", b"gpt2", b"none", b"\xff\xfe", b"\n\x1b[31m", b"x" * 5000, b"{% for", b"qwen2")


@dataclass
class GgufParts:
    """Parts of a GGUF file, each changeable alone."""

    entries: list[tuple[bytes, int, bytes]]  # key, type, bytes of the value
    tensors: list[tuple[bytes, list[int], int, int]]  # name, dimensions, type, offset
    data: bytes
    num_tensors: int
    num_entries: int

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Take a well-formed file apart."""
        num_tensors, num_entries = struct.unpack_from("<QQ", content, 8)
        position, entries, tensors = 24, [], []
        for _ in range(num_entries):
            key, position = _string(content, position)
            (kind,) = struct.unpack_from("<I", content, position)
            end = _end_of_value(content, position + 4, kind)
            entries.append((key, kind, content[position + 4 : end]))
            position = end
        for _ in range(num_tensors):
            name, position = _string(content, position)
            (num_dims,) = struct.unpack_from("<I", content, position)
            dims = list(struct.unpack_from(f"<{num_dims}Q", content, position + 4))
            position += 4 + 8 * num_dims
            tensors.append((name, dims, *struct.unpack_from("<IQ", content, position)))
            position += 12
        return cls(entries, tensors, content[-(-position // 32) * 32 :], num_tensors, num_entries)

    def to_bytes(self) -> bytes:
        """Return the file."""
        parts = [b"GGUF", struct.pack("<IQQ", 3, self.num_tensors, self.num_entries)]
        for key, kind, value in self.entries:
            parts += [_written(key), struct.pack("<I", kind), value]
        for name, dims, number, offset in self.tensors:
            places = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset)
            parts += [_written(name), places]
        header = b"".join(parts)
        return header + bytes(-len(header) % 32) + self.data


def changed_parts(rng: random.Random, content: bytes) -> bytes:
    """Return a GGUF file with one or two lies in its metadata, its tensor infos, its counts or its data."""
    parts = GgufParts.of(content)
    for _ in range(rng.choice([1, 1, 1, 2])):
        rng.choice([_change_entry, _change_entry, _change_tensor, _change_tensor, _change_whole])(rng, parts)
    return parts.to_bytes()


def _change_entry(rng: random.Random, parts: GgufParts) -> None:
    index = rng.randrange(len(parts.entries))
    key, kind, value = parts.entries[index]
    how = rng.randrange(8)
    if how == 0:  # twice
        parts.entries.append((key, *_value(rng)))
        parts.num_entries += 1
    elif how == 1:
        del parts.entries[index]
        parts.num_entries -= 1
    elif how == 2:  # another's value
        other = rng.choice(parts.entries)
        parts.entries[index] = (key, *other[1:])
    elif how == 3:  # another type over the same bytes
        parts.entries[index] = (key, rng.randrange(14), value)
    elif how == 4 and kind == _ARRAY:  # shorter, longer, of another type
        count = rng.choice([*_COUNTS, struct.unpack_from("<Q", value, 4)[0] + rng.choice([-1, 1])])
        parts.entries[index] = (key, kind, struct.pack("<IQ", rng.randrange(13), count % 2**64) + value[12:])
    elif how == 5:
        parts.entries[index] = (rng.choice([key + b"_", b"", key.upper(), b"x" * 2**16]), kind, value)
    else:
        parts.entries[index] = (key, *_value(rng))


def _value(rng: random.Random) -> tuple[int, bytes]:
    """Return a random value's type and bytes."""
    kind = rng.choice([*_SIZES, _STRING, _STRING, _ARRAY])
    if kind == _STRING:
        return kind, _written(rng.choice(_TEXTS))
    if kind == _ARRAY:
        items = [rng.choice(_TEXTS) for _ in range(rng.choice([0, 1, 300]))]
        return kind, struct.pack("<IQ", _STRING, len(items)) + b"".join(map(_written, items))
    if kind in (6, 12):
        return kind, struct.pack("<f" if kind == 6 else "<d", rng.choice(_FLOATS))
    number = rng.choice([*_COUNTS, *_DIMS, rng.randrange(256)])
    return kind, (number % 2 ** (8 * _SIZES[kind])).to_bytes(_SIZES[kind], "little")


def _change_tensor(rng: random.Random, parts: GgufParts) -> None:
    index, other = rng.randrange(len(parts.tensors)), rng.randrange(len(parts.tensors))
    name, dims, number, offset = parts.tensors[index]
    how = rng.randrange(8)
    if how == 0:
        dims = rng.choice([dims[::-1], [*dims, 1], [*dims, 1, 1, 1, 1], [], [2**32] * 2, [2**16] * 4])
    elif how == 1 and dims:
        dims = [*dims]
        dims[rng.randrange(len(dims))] = rng.choice([*_DIMS, dims[0] * 2, dims[-1] + 1]) % 2**64
    elif how == 2:
        number = rng.choice([*range(40), 2**31, 2**32 - 1])
    elif how == 3:
        offset = (
            rng.choice([0, 1, 32, offset + 32, offset + 1, 2**32, 2**63, 2**64 - 32, parts.tensors[other][3]]) % 2**64
        )
    elif how == 4:
        name = rng.choice([name + b"_", b"", b"\xff", b"a\nb", parts.tensors[other][0], name.replace(b"0", b"99999")])
    elif how == 5:  # exchange two places
        parts.tensors[other], (name, dims, number, offset) = (
            (parts.tensors[other][0], dims, number, offset),
            (name, *parts.tensors[other][1:]),
        )
    elif how == 6:
        parts.tensors.append((name, dims, number, offset))
        parts.num_tensors += 1
    if how == 7:
        del parts.tensors[index]
        parts.num_tensors -= 1
    else:
        parts.tensors[index] = (name, dims, number, offset)


def _change_whole(rng: random.Random, parts: GgufParts) -> None:
    how = rng.randrange(5)
    if how == 0:
        parts.num_tensors = rng.choice([*_COUNTS, parts.num_tensors + 1, max(0, parts.num_tensors - 1)])
    elif how == 1:
        parts.num_entries = rng.choice([*_COUNTS, parts.num_entries + 1, max(0, parts.num_entries - 1)])
    elif how == 2:
        parts.data = parts.data[: rng.randrange(len(parts.data))]
    elif how == 3:
        parts.data = rng.randbytes(rng.randrange(64)) + parts.data
    else:  # NaNs in halves and in floats
        begin = rng.randrange(len(parts.data) // 2) * 2
        filled = rng.choice([b"\x00\x7e", b"\x00\x7c", b"\xff\xff"]) * rng.choice([1, 16, 2000])
        parts.data = (parts.data[:begin] + filled + parts.data[begin + len(filled) :])[: len(parts.data)]


def _string(content: bytes, position: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<Q", content, position)
    return content[position + 8 : position + 8 + length], position + 8 + length


def _written(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _end_of_value(content: bytes, position: int, kind: int) -> int:
    if kind == _STRING:
        return _string(content, position)[1]
    if kind != _ARRAY:
        return position + _SIZES[kind]
    item_kind, count = struct.unpack_from("<IQ", content, position)
    position += 12
    for _ in range(count if item_kind == _STRING else 0):
        position = _string(content, position)[1]
    return position if item_kind == _STRING else position + count * _SIZES[item_kind]
