"""TensorEntry: place of a tensor in a safetensors file, from the file's header.

File format: 8 bytes of little-endian header length, a JSON header of {name: dtype, shape, data_offsets}, the bytes
(https://github.com/huggingface/safetensors#format).
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import ConfigError

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
}

# Endings of names of a recurrence's numbers: an error of its decay grows with every token.
WIDE = (".A_log", ".D", ".dt_bias")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Place of a tensor in a file."""

    path: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int  # bytes from the file's beginning
    num_bytes: int


def tensor_entries(path: Path) -> Iterator[TensorEntry]:
    """Yield a file's tensors that have a dtype of _DTYPES, in the order of their bytes. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if header_bytes > _MAX_HEADER_BYTES:
                raise ValueError(f"a header of {header_bytes} bytes")
            header = json.loads(file.read(header_bytes))
            size = os.fstat(file.fileno()).st_size - 8 - header_bytes
        header.pop("__metadata__", None)
        headers = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        for name, fields in headers:
            begin, end = fields["data_offsets"]
            if not 0 <= begin <= end <= size:
                raise ValueError(f"{name} ends at byte {end} of {size}")
            dtype = _DTYPES.get(fields["dtype"])
            if dtype is not None:
                entry = TensorEntry(path, name, dtype, tuple(fields["shape"]), 8 + header_bytes + begin, end - begin)
                if math.prod(entry.shape) * dtype.itemsize != entry.num_bytes:
                    raise ValueError(f"{name} has {entry.num_bytes} bytes and shape {list(entry.shape)}")
                yield entry
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise ConfigError(f"{path} is not a whole safetensors file ({exc}); fetch the file again") from exc


def stored_dtype(folder: Path) -> str | None:
    """Return the name of the dtype that most bytes of 16- and 32-bit floats have in the folder's first file.

    None without such a file or such tensors. Raises ConfigError.
    """
    path = min(folder.glob("*.safetensors"), default=None)
    num_bytes = dict.fromkeys((torch.bfloat16, torch.float16, torch.float32), 0)
    for entry in tensor_entries(path) if path is not None else ():
        if entry.dtype in num_bytes:
            num_bytes[entry.dtype] += entry.num_bytes
    most = max(num_bytes, key=num_bytes.__getitem__)
    return str(most).removeprefix("torch.") if num_bytes[most] else None


def read_tensor(entry: TensorEntry) -> Tensor:
    """Read a tensor into memory of its own. Raises OSError, ValueError.

    A memory-mapped tensor would change with its file, and end the process with SIGBUS if the file is truncated.
    """
    whole = torch.empty(entry.num_bytes, dtype=torch.uint8)
    with entry.path.open("rb") as file:
        file.seek(entry.offset)
        num_missing = entry.num_bytes - file.readinto(whole.numpy().data)
    if num_missing:
        raise ValueError(f"the file ends {num_missing} bytes early")
    return whole.view(entry.dtype).view(entry.shape)
