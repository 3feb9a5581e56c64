"""Decoder of a tensor's blocks: exactly, into values with scales (kernels/quantize.py), or into floats.

scale · u + offset in float32 is bit for bit the value that the `gguf` package gives: scales are products of a half and
at most 8 bits, so only the last addition rounds. Layouts: ggml-common.h and ggml-quants.c of
https://github.com/ggml-org/ggml. `grids.bin` has the IQ types' grids as the `gguf` package's module quants has them: an
entry is a run of 4 or 8 values, as indices of its codebook, 4 or 2 bits each, lowest bits first.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ....kernels.ops import E2M1, Plane, QuantizedWeight, unpack_codes
from ...errors import ConfigError
from .tensor_types import TENSOR_TYPES, TYPES_BY_NAME

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_TERNARY = (-1, 0, 1, 2)
# Sizes and, from the upper half on, their negatives. IQ1: eighths of -1, 0 and 1, each a bit higher or lower.
_IQ1 = (-7, 1, 9, 0, -9, -1, 7, 0)
_IQ2 = (8, 25, 43, 0, -8, -25, -43, 0)
_IQ3_XXS = (4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62)
_IQ3_S = (1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15)
# Type -> first byte of its grid in grids.bin, entries, bits of an index.
_GRIDS = {
    "IQ2_XXS": (0, 256, 2),
    "IQ2_XS": (512, 512, 2),
    "IQ2_S": (1536, 1024, 2),
    "IQ3_XXS": (3584, 256, 4),
    "IQ3_S": (4096, 512, 4),
    "IQ1": (5120, 2048, 2),
}
# Number of values that are converted to floats at a time, so that their float32 form fits the processor's cache.
_CHUNK_VALUES = 2**18
# Number of blocks that are unpacked at a time, because unpacking takes several bytes for each value.
_BLOCKS_AT_ONCE = 2**20


class _Unpacked(NamedTuple):
    """Unpacked n blocks of b values: QuantizedWeight's fields, but [n, groups of a block] for its [G, N]."""

    values: Tensor  # [n, b]
    scales: Tensor
    offsets: Tensor | None = None
    super_scales: Tensor | None = None
    super_offsets: Tensor | None = None


def quantized(rows: Tensor, type_name: str) -> QuantizedWeight:
    """Return the weight [N, K] whose rows have these bytes, uint8 [N, bytes]; for quantized types only."""
    unpack, bits, codebook = _TYPES[type_name]
    blocks = rows.reshape(-1, TYPES_BY_NAME[type_name].block_bytes)
    parts = [unpack(part) for part in torch.split(blocks, _BLOCKS_AT_ONCE)]
    unpacked = parts[0] if len(parts) == 1 else _Unpacked(*map(_joined, zip(*parts, strict=True)))

    def laid_out(part: Tensor) -> Tensor:
        # The blocks of a row are adjacent, and so are the groups of a block.
        return part.reshape(len(rows), -1).T.contiguous()

    return QuantizedWeight(
        unpacked.values.reshape(len(rows), -1),
        laid_out(unpacked.scales),
        None if unpacked.offsets is None else laid_out(unpacked.offsets),
        bits,
        None if unpacked.super_scales is None else laid_out(unpacked.super_scales),
        None if unpacked.super_offsets is None else laid_out(unpacked.super_offsets),
        codebook=codebook,
    )


def gguf_dequantize(raw: bytes, type_name: str, num_elements: int) -> "NDArray[np.float32]":
    """Return the values [num_elements] of a tensor's bytes in float32, bit for bit those of the `gguf` package.

    Raises ConfigError for a type that is not known, and if the bytes are not whole blocks of that many values.
    """
    kind = TYPES_BY_NAME.get(type_name)
    if kind is None:
        known = ", ".join(kind.name for kind in TENSOR_TYPES.values())
        raise ConfigError(f"type {type_name!r:.40} is not known; known: {known}")
    if num_elements % kind.block_values or num_elements < 0 or len(raw) != kind.num_bytes(num_elements):
        blocks = f"{kind.block_values} values in {kind.block_bytes} bytes"
        raise ConfigError(f"{len(raw)} bytes are not {num_elements} values of {type_name}, whose blocks have {blocks}")
    rows = torch.frombuffer(bytearray(raw or kind.block_bytes), dtype=torch.uint8).view(-1, kind.block_bytes)
    values: NDArray[np.float32] = floats(rows, type_name, torch.float32).flatten()[:num_elements].numpy()
    return values


def _joined(parts: tuple[Any, ...]) -> Any:
    return None if parts[0] is None else torch.cat(parts)


def floats(rows: Tensor, type_name: str, dtype: torch.dtype) -> Tensor:
    """Return the tensor [N, K] in `dtype` whose rows have these bytes, uint8 [N, bytes]; for any type."""
    if type_name in _FLOATS:
        return rows.view(_FLOATS[type_name]).to(dtype)
    first = quantized(rows[:1], type_name)
    whole = torch.empty((len(rows), first.values.shape[1]), dtype=dtype)
    step = max(1, _CHUNK_VALUES // max(1, whole.shape[1]))
    for begin in range(0, len(rows), step):
        whole[begin : begin + step] = quantized(rows[begin : begin + step], type_name).dequantized()
    return whole


def _half(blocks: Tensor, at: int) -> Tensor:
    """Return two bytes of each block as float16 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16)


def _signed(values: Tensor, middle: int) -> Tensor:
    """Return uint8 values as int8, less `middle`."""
    return values.view(torch.int8) - middle


def _nibbles(begin: int, num_bytes: int, *, run: int = 16) -> Plane:
    """Name halves of bytes: each run's low halves, then its high halves."""
    return Plane(begin, num_bytes, 4, run)


def _q4_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(unpack_codes(blocks, _nibbles(2, 16), middle=8), _half(blocks, 0))


def _q4_1(blocks: Tensor) -> _Unpacked:
    return _Unpacked(unpack_codes(blocks, _nibbles(4, 16)), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(unpack_codes(blocks, _nibbles(6, 16), Plane(2, 4, 1, 1), middle=16), _half(blocks, 0))


def _q5_1(blocks: Tensor) -> _Unpacked:
    return _Unpacked(unpack_codes(blocks, _nibbles(8, 16), Plane(4, 4, 1, 1)), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(blocks[:, 2:].contiguous().view(torch.int8), _half(blocks, 0))


def _iq4_nl(blocks: Tensor) -> _Unpacked:
    return _Unpacked(unpack_codes(blocks, _nibbles(2, 16)), _half(blocks, 0))


def _mxfp4(blocks: Tensor) -> _Unpacked:
    exponents = blocks[:, :1].int()  # twice the scale, whose half may be denormal
    bits = torch.where(exponents < 2, 0x200000 << exponents, (exponents - 1) << 23)
    return _Unpacked(unpack_codes(blocks, _nibbles(1, 16)), bits.to(torch.int32).view(torch.float32))


def _nvfp4(blocks: Tensor) -> _Unpacked:
    # Bytes of e4m3 without a sign. ggml reads its NaN as 0 and, with the sign, as the number that the bits would be.
    scales = (blocks[:, :4] & 127).view(torch.float8_e4m3fn).half()
    scales = torch.where(blocks[:, :4] == 127, 0.0, torch.where(blocks[:, :4] == 255, 480.0, scales))
    return _Unpacked(unpack_codes(blocks, _nibbles(4, 32, run=8)), scales.half() / 2)


def _fields(blocks: Tensor, width: int, count: int) -> Tensor:
    """Split numbers [n, m] into fields of `width` bits, lowest first: [n, m · count]."""
    shifts = torch.arange(0, width * count, width, dtype=blocks.dtype)
    return ((blocks[:, :, None] >> shifts) & ((1 << width) - 1)).flatten(1)


def _words(blocks: Tensor, begin: int, end: int, dtype: torch.dtype) -> Tensor:
    """Return bytes of each block as little-endian integers, int32 [n, words]; 32 bits may be negative."""
    words = blocks[:, begin:end].clone(memory_format=torch.contiguous_format).view(dtype).int()
    return words & 0xFFFF if dtype == torch.int16 else words


def _q1_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(_fields(blocks[:, 2:], 1, 8) * 2, _half(blocks, 0))  # -1 and 1


def _q2_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(unpack_codes(blocks, Plane(2, blocks.shape[1] - 2, 2, 1)), _half(blocks, 0))


def _tq1_0(blocks: Tensor) -> _Unpacked:
    # A byte is a fraction in base 3: multiplied by a power of 3, modulo 1, its first digit is the value.
    powers = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8)[:, None]
    runs = ((blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4))
    fractions = torch.cat([(run[:, None] * powers[:count]).flatten(1) for run, count in runs], dim=1)
    return _Unpacked((fractions.short() * 3 >> 8).to(torch.uint8), _half(blocks, 52))


def _tq2_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(unpack_codes(blocks, Plane(0, 64, 2, 32)), _half(blocks, 64))


def _q2_k(blocks: Tensor) -> _Unpacked:
    values, scales = unpack_codes(blocks, Plane(16, 64, 2, 32)), blocks[:, :16]
    return _Unpacked(values, scales & 15, scales >> 4, _half(blocks, 80), -_half(blocks, 82))


def _q3_k(blocks: Tensor) -> _Unpacked:
    low = torch.cat((blocks[:, 96:104] & 15, blocks[:, 96:104] >> 4), dim=1)
    high = (blocks[:, None, 104:108] >> torch.arange(0, 8, 2, dtype=torch.uint8)[:, None] & 3).flatten(1)
    values = unpack_codes(blocks, Plane(32, 64, 2, 32), Plane(0, 32, 1, 32), middle=4)
    return _Unpacked(values, _signed(low | high << 4, 32), super_scales=_half(blocks, 108))


def _iq4_xs(blocks: Tensor) -> _Unpacked:
    high = _fields(_words(blocks, 2, 4, torch.int16), 2, 8).to(torch.uint8)
    scales = _signed(_fields(blocks[:, 4:8], 4, 2) | high << 4, 32)
    return _Unpacked(unpack_codes(blocks, _nibbles(8, 128)), scales, super_scales=_half(blocks, 0))


@cache
def _grid(name: str) -> Tensor:
    """Return the grid of a type: indices of its codebook's sizes, uint8 [entries, 4 or 8]."""
    begin, count, bits = _GRIDS[name]
    end = begin + 2 * count  # 4 values of 4 bits, or 8 of 2
    data = bytearray(Path(__file__).with_name("grids.bin").read_bytes()[begin:end])
    return _fields(torch.frombuffer(data, dtype=torch.uint8)[None], bits, 8 // bits).view(count, -1)


def _of_grid(name: str, entries: Tensor, signs: Tensor, scales: Tensor, unit: Tensor) -> _Unpacked:
    """Look entries of a grid up: w = unit · (2 · scale + 1) · sign · size. A sign is a bit of a byte of `signs`."""
    sizes, is_negative = _grid(name)[entries].flatten(1), _fields(signs.to(torch.uint8), 1, 8)
    above = 3 if name.startswith("IQ3") else 2
    return _Unpacked(sizes | is_negative << above, (2 * scales + 1).to(torch.int8), super_scales=unit)


def _with_eighth(signs: Tensor) -> Tensor:
    """Append the sign that makes the number of minus signs even to seven: bytes, as int32."""
    parity = signs ^ signs >> 4
    parity = parity ^ parity >> 2
    return signs | ((parity ^ parity >> 1) & 1) << 7


def _signs_and_scales(words: Tensor) -> tuple[Tensor, Tensor]:
    """Split words of four times seven signs, and a scale."""
    return _with_eighth(_fields(words, 7, 4)), words >> 28 & 15


def _iq2_xxs(blocks: Tensor) -> _Unpacked:
    entries = blocks[:, 2:].reshape(-1, 8, 8)[:, :, :4].flatten(1).int()
    signs, scales = _signs_and_scales(_words(blocks, 2, 66, torch.int32)[:, 1::2])
    return _of_grid("IQ2_XXS", entries, signs, scales, _half(blocks, 0).float() / 8)


def _iq2_xs(blocks: Tensor) -> _Unpacked:
    words, scales = _words(blocks, 2, 66, torch.int16), _fields(blocks[:, 66:74], 4, 2)
    return _of_grid("IQ2_XS", words & 511, _with_eighth(words >> 9), scales, _half(blocks, 0).float() / 8)


def _iq2_s(blocks: Tensor) -> _Unpacked:
    entries = blocks[:, 2:34].int() | _fields(blocks[:, 66:74].int(), 2, 4) << 8
    scales = _fields(blocks[:, 74:82], 4, 2)
    return _of_grid("IQ2_S", entries, blocks[:, 34:66], scales, _half(blocks, 0).float() / 8)


def _iq3_xxs(blocks: Tensor) -> _Unpacked:
    signs, scales = _signs_and_scales(_words(blocks, 66, 98, torch.int32))
    return _of_grid("IQ3_XXS", blocks[:, 2:66].int(), signs, scales, _half(blocks, 0).float() / 4)


def _iq3_s(blocks: Tensor) -> _Unpacked:
    entries = blocks[:, 2:66].int() | _fields(blocks[:, 66:74].int(), 1, 8) << 8
    scales = _fields(blocks[:, 106:110], 4, 2)
    return _of_grid("IQ3_S", entries, blocks[:, 74:106], scales, _half(blocks, 0))


def _iq1(low: Tensor, high: Tensor, is_lower: Tensor, scales: Tensor, unit: Tensor) -> _Unpacked:
    """Look the grid's entries low + 256 · high up; runs of 8 or 32 values are an eighth higher or lower."""
    trits = _grid("IQ1")[low.int() | high.int() << 8].flatten(1)
    below = (is_lower.to(torch.uint8) << 2).repeat_interleave(256 // is_lower.shape[1], dim=1)
    return _Unpacked(trits | below, (2 * scales + 1).to(torch.int8), super_scales=unit.float() / 8)


def _iq1_s(blocks: Tensor) -> _Unpacked:
    words = _words(blocks, 34, 50, torch.int16)
    return _iq1(blocks[:, 2:34], _fields(words, 3, 4), words >> 15, words >> 12 & 7, _half(blocks, 0))


def _iq1_m(blocks: Tensor) -> _Unpacked:
    high, words = _fields(blocks[:, 32:48], 4, 2), _words(blocks, 48, 56, torch.int16)
    unit = (words >> 12 << torch.arange(0, 16, 4, dtype=torch.int32)).sum(dim=1, keepdim=True)
    return _iq1(blocks[:, :32], high & 7, high >> 3, _fields(words, 3, 4), unit.short().view(torch.float16))


def _with_minima(values: Tensor, blocks: Tensor) -> _Unpacked:
    """Add the scales of Q4_K and Q5_K: eight scales and minima of 6 bits in 12 bytes, and a half for either."""
    low, middle, high = blocks[:, 4:16].reshape(len(blocks), 3, 4).unbind(1)
    scales = torch.cat((low & 63, (high & 15) | ((low >> 2) & 48)), dim=1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 2) & 48)), dim=1)
    return _Unpacked(values, scales, minima, _half(blocks, 0), -_half(blocks, 2))


def _q4_k(blocks: Tensor) -> _Unpacked:
    return _with_minima(unpack_codes(blocks, _nibbles(16, 128, run=32)), blocks)


def _q5_k(blocks: Tensor) -> _Unpacked:
    return _with_minima(unpack_codes(blocks, _nibbles(48, 128, run=32), Plane(16, 32, 1, 32)), blocks)


def _q6_k(blocks: Tensor) -> _Unpacked:
    # Each half of the block has 64 bytes of low nibbles, like the other types, and 32 bytes of high pairs of four runs.
    values = unpack_codes(blocks, _nibbles(0, 128, run=64), Plane(128, 64, 2, 32), middle=32)
    scales = blocks[:, 192:208].contiguous().view(torch.int8)
    return _Unpacked(values, scales, super_scales=_half(blocks, 208))


# Type name -> function that unpacks blocks, bits of a value, codebook.
_TYPES: dict[str, tuple[Callable[[Tensor], _Unpacked], int, tuple[int, ...] | None]] = {
    "Q4_0": (_q4_0, 4, None),
    "Q4_1": (_q4_1, 4, None),
    "Q5_0": (_q5_0, 5, None),
    "Q5_1": (_q5_1, 5, None),
    "Q8_0": (_q8_0, 8, None),
    "Q2_K": (_q2_k, 2, None),
    "Q3_K": (_q3_k, 3, None),
    "Q4_K": (_q4_k, 4, None),
    "Q5_K": (_q5_k, 5, None),
    "Q6_K": (_q6_k, 6, None),
    "IQ1_S": (_iq1_s, 3, _IQ1),
    "IQ1_M": (_iq1_m, 3, _IQ1),
    "IQ2_XXS": (_iq2_xxs, 3, _IQ2),
    "IQ2_XS": (_iq2_xs, 3, _IQ2),
    "IQ2_S": (_iq2_s, 3, _IQ2),
    "IQ3_XXS": (_iq3_xxs, 4, _IQ3_XXS),
    "IQ3_S": (_iq3_s, 4, _IQ3_S),
    "IQ4_NL": (_iq4_nl, 4, _IQ4_NL),
    "IQ4_XS": (_iq4_xs, 4, _IQ4_NL),
    "TQ1_0": (_tq1_0, 2, _TERNARY),
    "TQ2_0": (_tq2_0, 2, _TERNARY),
    "MXFP4": (_mxfp4, 4, E2M1),
    "NVFP4": (_nvfp4, 4, E2M1),
    "Q1_0": (_q1_0, 2, _TERNARY),
    "Q2_0": (_q2_0, 2, _TERNARY),
    "Q2_0_G128": (_q2_0, 2, _TERNARY),
}
