"""Decoder of a tensor's blocks: exactly, into values with scales (kernels/quantize.py), or into floats.

scale · u + offset in float32 is bit for bit the value that the `gguf` package gives: scales are products of a half and
at most 8 bits, so only the last addition rounds. Layouts: ggml-common.h and ggml-quants.c of
https://github.com/ggml-org/ggml.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight, powers_of_two

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Number of values that are converted to floats at a time, so that their float32 form fits the processor's cache.
_CHUNK_VALUES = 2**18
# Number of blocks that are unpacked at a time, because unpacking takes several bytes for each value.
_BLOCKS_AT_ONCE = 2**16


class _Unpacked(NamedTuple):
    """Unpacked n blocks of b values: QuantizedWeight's fields, but [n, groups of a block] for its [G, N]."""

    values: Tensor  # [n, b]
    scales: Tensor
    offsets: Tensor | None = None
    super_scales: Tensor | None = None
    super_offsets: Tensor | None = None


def quantized(rows: Tensor, type_name: str) -> QuantizedWeight:
    """Return the weight [N, K] whose rows have these bytes, uint8 [N, bytes]; for quantized types only."""
    unpack, bits, block_bytes = _TYPES[type_name]
    parts = [unpack(part) for part in torch.split(rows.reshape(-1, block_bytes), _BLOCKS_AT_ONCE)]
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
        is_float4=type_name == "MXFP4",
    )


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


def _nibbles(blocks: Tensor, *, num_bytes: int = 16) -> Tensor:
    """Split each run of `num_bytes` into its low halves, then its high halves: [n, 2 · bytes]."""
    copied = blocks.clone(memory_format=torch.contiguous_format)  # contiguous, so int64 can view eight bytes at a time
    runs = copied.view(torch.int64).view(len(blocks), -1, num_bytes // 8)
    low = 0x0F0F0F0F0F0F0F0F
    return torch.stack((runs & low, runs >> 4 & low), dim=2).view(torch.uint8).view(len(blocks), -1)


def _fifth_bits(blocks: Tensor) -> Tensor:
    """Return [n, 32]: 16 for each bit that is set in four bytes, lowest bit first, else 0."""
    bits = blocks[:, :, None] >> torch.arange(8, dtype=torch.uint8)
    return (bits & 1).view(len(blocks), 32) << 4


def _q4_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(_signed(_nibbles(blocks[:, 2:]), 8), _half(blocks, 0))


def _q4_1(blocks: Tensor) -> _Unpacked:
    return _Unpacked(_nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(_signed(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), 16), _half(blocks, 0))


def _q5_1(blocks: Tensor) -> _Unpacked:
    return _Unpacked(_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Tensor) -> _Unpacked:
    return _Unpacked(blocks[:, 2:].contiguous().view(torch.int8), _half(blocks, 0))


def _iq4_nl(blocks: Tensor) -> _Unpacked:
    values = torch.tensor(_IQ4_NL, dtype=torch.int8)[_nibbles(blocks[:, 2:]).int()]
    return _Unpacked(values, _half(blocks, 0))


def _mxfp4(blocks: Tensor) -> _Unpacked:
    return _Unpacked(_nibbles(blocks[:, 1:]), powers_of_two(blocks[:, :1]))


def _with_minima(values: Tensor, blocks: Tensor) -> _Unpacked:
    """Add the scales of Q4_K and Q5_K: eight scales and minima of 6 bits in 12 bytes, and a half for either."""
    low, middle, high = blocks[:, 4:16].reshape(len(blocks), 3, 4).unbind(1)
    scales = torch.cat((low & 63, (high & 15) | ((low >> 2) & 48)), dim=1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 2) & 48)), dim=1)
    return _Unpacked(values, scales, minima, _half(blocks, 0), -_half(blocks, 2))


def _q4_k(blocks: Tensor) -> _Unpacked:
    return _with_minima(_nibbles(blocks[:, 16:], num_bytes=32), blocks)


def _q5_k(blocks: Tensor) -> _Unpacked:
    # Bit i of byte j belongs to value j of group i.
    fifth = ((blocks[:, 16:48, None] >> torch.arange(8, dtype=torch.uint8)) & 1).transpose(1, 2).reshape(-1, 256) << 4
    return _with_minima(_nibbles(blocks[:, 48:], num_bytes=32) | fifth, blocks)


def _q6_k(blocks: Tensor) -> _Unpacked:
    # Each half of the block has 64 bytes of low nibbles, like the other types, and 32 bytes of high pairs of four runs.
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    values = _nibbles(blocks[:, :128], num_bytes=64) | ((pairs & 3) << 4).view(-1, 256)
    scales = blocks[:, 192:208].contiguous().view(torch.int8)
    return _Unpacked(_signed(values, 32), scales, super_scales=_half(blocks, 208))


# Type name -> function that unpacks blocks, bits of a value, bytes of a block.
_TYPES: dict[str, tuple[Callable[[Tensor], _Unpacked], int, int]] = {
    "Q4_0": (_q4_0, 4, 18),
    "Q4_1": (_q4_1, 4, 20),
    "Q5_0": (_q5_0, 5, 22),
    "Q5_1": (_q5_1, 5, 24),
    "Q8_0": (_q8_0, 8, 34),
    "Q4_K": (_q4_k, 4, 144),
    "Q5_K": (_q5_k, 5, 176),
    "Q6_K": (_q6_k, 6, 210),
    "IQ4_NL": (_iq4_nl, 8, 18),
    "MXFP4": (_mxfp4, 4, 17),
}
