"""GgufFile: the header of a GGUF file, with the model's metadata and the place of each tensor. Imports no torch.

Versions 2 and 3, little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, two counts,
metadata, tensor infos, padding, data. A file may be hostile: every count, length, offset and alignment is compared
with the bytes of the file before memory of that size is allocated, and the numbers of small objects are limited.
"""

import os
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from ...errors import ConfigError
from ..checkpoint import version_of
from ..gguf_files import parts_of
from .tensor_types import FORKED_TYPES, TENSOR_TYPES, TensorType, type_name

_MAGIC = b"GGUF"
# Headers hold the vocabulary: 1.8 MB for 49 k tokens, 9 MB for 200 k. The second size is for headers beyond the first.
_HEADER_BYTES = (2 * 2**20, 32 * 2**20)
_MAX_ENTRIES = 2**14  # limit for keys of metadata, and for tensors
_MAX_DIMS = 4
_STRING, _ARRAY = 8, 9
# Number of a value's type -> its format.
_SCALARS = {
    number: struct.Struct("<" + code)
    for number, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]


class Strings:
    """Array of strings, which are decoded on access."""

    def __init__(self, data: bytes, offsets: "array[int]") -> None:
        self._data = data
        self._offsets = offsets  # positions of each string's length, and the end of the last string

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> str:
        if index >= len(self):
            raise IndexError(index)
        return self._data[self._offsets[index] + _U64.size : self._offsets[index + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        for begin, end in pairwise(self._offsets):
            yield self._data[begin + 8 : end].decode()


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Tensor's place in the file, its type and its shape."""

    name: str
    type: TensorType
    shape: tuple[int, ...]  # torch's order: rows first
    offset: int  # bytes from the file's beginning
    num_bytes: int
    path: Path  # the file: a part, if the model is split


@dataclass(frozen=True, slots=True, weakref_slot=True)
class GgufFile:
    """Header of a file. Arrays of strings are `Strings`, arrays of numbers memoryviews."""

    path: Path
    version: tuple[int, ...]  # version_of(path) when the header was read
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    parts: "tuple[GgufFile, ...]" = ()  # of a split model, in order

    @property
    def files(self) -> "tuple[GgufFile, ...]":
        """Headers of all files that hold the model."""
        return self.parts or (self,)


_headers: WeakValueDictionary[tuple[Path, tuple[int, ...]], GgufFile] = WeakValueDictionary()


def read_gguf(path: Path) -> GgufFile:
    """Return the header of a file, or of all parts of a split model, given any part.

    Raises ConfigError if a file is missing, is not whole, or has contents that are not supported.
    """
    paths = parts_of(path)
    files = tuple(_read_file(part) for part in paths)
    first = files[0]
    count = first.metadata.get("split.count", 0)
    if count not in (0, len(files)):
        raise ConfigError(
            f"{path} is one of {count!r} parts of a split GGUF; rename the parts to what they were: "
            "NAME-00001-of-00003.gguf, for example"
        )
    if len(files) == 1:
        return first
    tensors = {name: info for file in files for name, info in file.tensors.items()}
    if len(tensors) != (expected := first.metadata.get("split.tensors.count", len(tensors))):
        raise ConfigError(f"{path}: its {len(files)} parts have {len(tensors)} tensors of {expected}; fetch them again")
    return GgufFile(first.path, first.version, first.metadata, tensors, files)


def _read_file(path: Path) -> GgufFile:
    """Return the header of one file, read once while it is in use: 60 ms for 49 k tokens. Raises ConfigError."""
    try:
        version = version_of(path)
        if (known := _headers.get((path, version))) is not None:
            return known
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for num_bytes in _HEADER_BYTES:
                file.seek(0)
                header = _Header(file.read(min(num_bytes, size)))
                try:
                    metadata, infos = header.read()
                except _EndsEarlyError:
                    if num_bytes >= size or num_bytes == _HEADER_BYTES[-1]:
                        raise
                else:
                    gguf = GgufFile(path, version, metadata, _tensors(infos, header.position, metadata, path))
                    _headers[path, version] = gguf
                    return gguf
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} is not a GGUF file that can be read ({exc}); fetch the file again") from exc
    raise AssertionError("the last size returns or raises")


def header_ends(data: bytes) -> bool:
    """True if the first bytes of a file hold its whole header, or are no GGUF's."""
    try:
        _Header(data).read()
    except _EndsEarlyError:
        return False
    except ValueError:
        return True
    return True


class _EndsEarlyError(ValueError):
    def __init__(self) -> None:
        super().__init__(f"its header does not end, or not within {_HEADER_BYTES[-1] // 2**20} MiB")


# A tensor's name, dimensions in the file's order (rows last), type, and offset in the data.
_Info = tuple[str, tuple[int, ...], int, int]


class _Header:
    """Reader of a header's bytes, which advances `position`. Raises ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def read(self) -> tuple[dict[str, Any], list[_Info]]:
        if (magic := self._take(4)) != _MAGIC:
            old = magic[::-1].decode("ascii", "replace")
            is_old = old in ("ggml", "ggmf", "ggjt", "ggla")
            what = f"{old} is a format of before August 2023, which nothing here reads; take a newer file"
            raise ValueError(what if is_old else "it does not begin with GGUF")
        version = self._number(_U32)
        if version not in (2, 3):
            kind = "big-endian" if version % 2**16 == 0 else f"version {version}"
            raise ValueError(f"{kind}; versions 2 and 3, little-endian, are known")
        num_tensors, num_keys = self._count("tensors"), self._count("keys")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            if key in metadata:
                raise ValueError(f"{key!r} stands there twice")
            metadata[key] = self._value(self._number(_U32))
        return metadata, [self._info() for _ in range(num_tensors)]

    def _take(self, num_bytes: int) -> bytes:
        begin, self.position = self.position, self.position + num_bytes
        if self.position > len(self._data):
            raise _EndsEarlyError
        return self._data[begin : self.position]

    def _number(self, kind: struct.Struct) -> Any:
        return kind.unpack(self._take(kind.size))[0]

    def _count(self, what: str) -> int:
        count: int = self._number(_U64)
        if count > _MAX_ENTRIES:
            raise ValueError(f"{count} {what}; at most {_MAX_ENTRIES} are read")
        return count

    def _string(self) -> str:
        return self._take(self._number(_U64)).decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item_kind, count = self._number(_U32), self._number(_U64)
            return self._strings(count) if item_kind == _STRING else self._numbers(_scalar(item_kind), count)
        return self._number(_scalar(kind))

    def _numbers(self, kind: struct.Struct, count: int) -> memoryview:
        return memoryview(self._take(kind.size * count)).cast(kind.format[1:])  # type: ignore[call-overload,no-any-return]

    def _strings(self, count: int) -> Strings:
        if count * _U64.size > len(self._data) - self.position:
            raise _EndsEarlyError
        offsets, position, length_at, data = array("I", [self.position]), self.position, _U64.unpack_from, self._data
        try:
            for _ in range(count):
                position += 8 + length_at(data, position)[0]
                offsets.append(position)
        except (struct.error, OverflowError):
            raise _EndsEarlyError from None
        self.position = position
        self._take(0)  # raises if the last string ends after the data
        return Strings(data, offsets)

    def _info(self) -> _Info:
        name, num_dims = self._string(), self._number(_U32)
        if not 1 <= num_dims <= _MAX_DIMS:
            raise ValueError(f"tensor {name!r} has {num_dims} dimensions")
        dims = tuple(self._number(_U64) for _ in range(num_dims))
        return name, dims, self._number(_U32), self._number(_U64)


def _scalar(kind: int) -> struct.Struct:
    if kind not in _SCALARS:
        raise ValueError(f"metadata of type {kind} is not known")
    return _SCALARS[kind]


def _tensors(infos: list[_Info], header_end: int, metadata: Mapping[str, Any], path: Path) -> dict[str, TensorInfo]:
    size = path.stat().st_size
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= size or alignment & (alignment - 1):
        raise ValueError(f"general.alignment must be a power of two within the file, not {alignment!r}")
    data_start = -(-header_end // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    end_of_last, last = data_start, "the header"
    infos = sorted(infos, key=lambda info: info[3])
    ends = [*(info[3] for info in infos[1:]), size - data_start]
    for (name, dims, number, offset), end in zip(infos, ends, strict=False):  # without tensors one end is left
        if number not in TENSOR_TYPES:
            known = ", ".join(kind.name for kind in TENSOR_TYPES.values())
            raise ValueError(f"tensor {name!r} is of type {type_name(number)}; known: {known}")
        kind, begin = TENSOR_TYPES[number], data_start + offset
        if number in FORKED_TYPES and kind.num_bytes(prod(dims)) > end - offset:
            kind = FORKED_TYPES[number]  # the smaller type
        if 0 in dims or dims[0] % kind.block_values:
            raise ValueError(f"tensor {name!r} of type {kind.name} has dimensions {list(dims)}")
        num_bytes = kind.num_bytes(prod(dims))
        if begin + num_bytes > size:
            raise ValueError(f"tensor {name!r} ends at byte {begin + num_bytes} of {size}")
        if offset % alignment or begin < end_of_last:
            raise ValueError(f"tensor {name!r} begins at byte {begin}, within {last!r} or not aligned")
        if name in tensors:
            raise ValueError(f"tensor {name!r} stands there twice")
        end_of_last, last = begin + num_bytes, name
        tensors[name] = TensorInfo(name, kind, tuple(reversed(dims)), begin, num_bytes, path)
    return tensors
