"""QuantizedWeight: w = scale · u + offset, read from files or rounded by `quantize`. Knows no device's layout.

`quantize` needs no calibration. int8: u in -127..127 and a scale per output. int4: u in 0..15, scale and offset per
output and group of inputs, the range of each group shrunk a little where that lowers its squared error (as in AWQ's
search, Lin et al. 2023).
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

GROUPS = (128, 64, 32)  # numbers of inputs that share a scale in int4: the first divisor of the number of inputs
E4M3_MAX = 448.0
# Doubled values of e2m1's codes (OCP Microscaling Formats 1.0).
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
# Quantizing needs some five float32 copies of the values; for billions of values these would fill a GPU.
_VALUES_AT_ONCE = 2**25


class QuantizedWeight(NamedTuple):
    """Weight [N, K] with `bits` per value: w = scale · u + offset, its K inputs in G groups of one size.

    Two levels (K-quants): with `super_scales` a scale is super_scale · scale, and with `super_offsets` an offset is
    super_offset · offset. Then the lower level is integers, of NVFP4 floats, and S divides G.
    """

    # [N, K] int8 (-2^(bits-1) to 2^(bits-1) - 1), uint8 (0 to 2^bits - 1) or float8_e4m3fn; uint8 with a codebook
    values: Tensor
    scales: Tensor  # [G, N] float32 or float16; below super_scales int8, uint8, or float16 without offsets
    offsets: Tensor | None  # [G, N] of the dtypes of scales; None: 0
    bits: int  # 2, 3, 4, 5, 6 or 8
    super_scales: Tensor | None = None  # [S, N] float32 or float16
    super_offsets: Tensor | None = None  # [S, N] float32 or float16; set if super_scales and offsets are
    order: Tensor | None = None  # [K] int64: values[:, j] belongs to input order[j] (GPTQ's act-order); None: to j
    # True: inputs are rounded too (W8A8), a row to int8 with its largest at ±127; the values are int8 without offsets
    rounds_inputs: bool = False
    # Integers u of which the values are indices, at most 2^bits and of 8 bits each; then without offsets
    codebook: tuple[int, ...] | None = None

    @property
    def group(self) -> int:
        """Number of inputs that share a scale."""
        return self.values.shape[1] // len(self.scales)

    @property
    def is_float4(self) -> bool:
        """True if the values are codes of e2m1."""
        return self.codebook == E2M1

    def packed_bits(self, *, is_gpu: bool) -> float:
        """Return the bits of a value with its share of scales and offsets, as a CPU or a GPU stores them.

        A GPU stores 2 and 3 bits as 4, 5 and 6 as 8, numbers instead of their indices, and one level of float32 scales
        instead of two levels. Scales of MXFP4 are exponents; a CPU's upper level is halves.
        """
        parts = (self.scales, self.offsets, self.super_scales, self.super_offsets)
        sizes = [8 * len(part) * part.element_size() for part in parts[:2] if part is not None]
        if self.is_float4 and self.scales.dtype == torch.float32:
            sizes = [8 * len(self.scales)]
        elif is_gpu and self.super_scales is not None:
            sizes = [32 * len(part) for part in parts[:2] if part is not None]
        else:
            sizes += [16 * len(part) for part in parts[2:] if part is not None]
        if not is_gpu:
            return self.bits + sum(sizes) / self.values.shape[1]
        bits = 4 if self.without_codebook().bits <= 4 else 8
        is_cut = self.group % GROUPS[0] == 0 and (bits == 4 or len(self.scales) > 1)  # into groups of 128
        return bits + sum(sizes) * (self.group // GROUPS[0] if is_cut else 1) / self.values.shape[1]

    def without_codebook(self) -> "QuantizedWeight":
        """Return the weight with numbers for indices, in 4 bits if these hold all numbers; float4 stays as it is."""
        if self.codebook is None or self.is_float4:
            return self
        numbers = torch.tensor(self.codebook, dtype=torch.int8, device=self.values.device)
        bits = 4 if max(map(abs, self.codebook)) < 8 else 8
        return self._replace(values=numbers[self.values.int()], bits=bits, codebook=None)

    def to(self, device: torch.device) -> "QuantizedWeight":
        """Copy the weight to another device."""
        parts = self._asdict().items()
        moved: dict[str, Any] = {name: part.to(device) for name, part in parts if isinstance(part, Tensor)}
        return self._replace(**moved)

    def rows(self, outputs: slice | Tensor) -> "QuantizedWeight":
        """Return the part with these outputs, in the order of a tensor of indices."""
        parts = self._asdict().items()
        kept: dict[str, Any] = {
            name: (part[outputs] if name == "values" else part[:, outputs]).contiguous()
            for name, part in parts
            if isinstance(part, Tensor) and name != "order"
        }
        return self._replace(**kept)

    def columns(self, inputs: slice) -> "QuantizedWeight":
        """Return the part with these inputs, in groups as large as possible and with equal values."""
        if self.order is not None:
            return self._ordered_columns(self.order, inputs)
        if len(self.scales) == 1 and self.super_scales is None:
            return self._replace(values=self.values[:, inputs].contiguous())
        start, stop = inputs.start, inputs.stop
        group, upper = (
            self.group,
            self.values.shape[1] // len(self.scales if self.super_scales is None else self.super_scales),
        )
        if start % upper or stop % upper:  # the two levels of scales are multiplied
            flat = self._flat()
            size = math.gcd(group, start, stop)
            fine = [None if part is None else part.repeat_interleave(group // size, dim=0) for part in flat]
            scales, offsets = (None if part is None else part[start // size : stop // size] for part in fine)
            assert scales is not None
            values = self.values[:, inputs].contiguous()
            return self._replace(values=values, scales=scales, offsets=offsets, super_scales=None, super_offsets=None)
        sizes = {"scales": group, "offsets": group, "super_scales": upper, "super_offsets": upper}
        kept: dict[str, Any] = {
            name: part[start // size : stop // size]
            for name, size in sizes.items()
            if (part := getattr(self, name)) is not None
        }
        return self._replace(values=self.values[:, inputs].contiguous(), **kept)

    def _ordered_columns(self, order: Tensor, inputs: slice) -> "QuantizedWeight":
        """Like `columns`, with a group for each input, because inputs of a group are not neighbours."""
        kept = ((order >= inputs.start) & (order < inputs.stop)).nonzero().flatten()
        scales, offsets = (None if part is None else part.index_select(0, kept // self.group) for part in self._flat())
        assert scales is not None
        return self._replace(
            values=self.values.view(torch.uint8).index_select(1, kept).view(self.values.dtype), scales=scales,
            offsets=offsets, super_scales=None, super_offsets=None, order=order[kept] - inputs.start,
        )  # fmt: skip

    def _flat(self) -> tuple[Tensor, Tensor | None]:
        """Return scales and offsets in one level."""
        if self.super_scales is None:
            return self.scales, self.offsets
        offsets = None if self.offsets is None else multiplied(self.offsets, self.super_offsets)
        return multiplied(self.scales, self.super_scales), offsets

    def dequantized(self) -> Tensor:
        """Return the weight as [N, K] float32, columns in the order of the inputs."""
        num_outputs, num_inputs = self.values.shape
        values = self.values.float()
        if self.codebook is not None:
            values = torch.tensor(self.codebook, dtype=torch.float32, device=values.device)[self.values.int()]
        grouped = values.view(num_outputs, -1, self.group)
        grouped = grouped * multiplied(self.scales, self.super_scales).T[:, :, None]
        if self.offsets is not None:
            grouped = grouped + multiplied(self.offsets, self.super_offsets).T[:, :, None]
        flat = grouped.view(num_outputs, num_inputs)
        return flat if self.order is None else torch.empty_like(flat).index_copy_(1, self.order, flat)


def multiplied(lower: Tensor, upper: Tensor | None) -> Tensor:
    """Multiply the rows of `upper` [S, N] into G / S neighbouring rows of `lower` [G, N]: [G, N] float32."""
    wide = lower.float()
    return wide if upper is None else wide * upper.float().repeat_interleave(len(lower) // len(upper), dim=0)


def powers_of_two(exponents: Tensor) -> Tensor:
    """Return 2^(e - 127) for e8m0 exponents, uint8, in float32; 255, which is NaN, becomes infinity."""
    bits = exponents.to(torch.int32) << 23
    return torch.where(bits == 0, 1 << 22, bits).view(torch.float32)


def dequantized(parts: Sequence[QuantizedWeight], dtype: torch.dtype) -> Tensor:
    """Dequantize and stack matrices of one input, [N1, K], [N2, K], …: [N1 + N2 + …, K] in `dtype`."""
    return torch.cat([part.dequantized().to(dtype) for part in parts])


def merged(parts: Sequence[QuantizedWeight]) -> list[QuantizedWeight]:
    """Merge matrices of one input if they are neighbours and differ in their values only."""
    return [_stack(list(alike)) for _, alike in groupby(parts, key=_kind)]


def _kind(part: QuantizedWeight) -> tuple[object, ...]:
    tensors = (part.scales, part.offsets, part.super_scales, part.super_offsets)
    shapes = tuple(None if part is None else (part.dtype, len(part)) for part in tensors)
    order = None if part.order is None else tuple(part.order.tolist())
    # A CPU keeps one number above halves (NVFP4).
    unit = float(part.super_scales[0, 0]) if part.super_scales is not None and part.scales.itemsize == 2 else None
    return part.values.dtype, part.bits, part.rounds_inputs, part.codebook, unit, shapes, order


def _stack(parts: list[QuantizedWeight]) -> QuantizedWeight:
    if len(parts) == 1:
        return parts[0]
    dims = {"values": 0, "scales": 1, "offsets": 1, "super_scales": 1, "super_offsets": 1}
    stacked: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts], dim=dim)
        for name, dim in dims.items()
        if getattr(parts[0], name) is not None
    }
    return parts[0]._replace(**stacked)


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round rows for `rounds_inputs`: x [T, K] ≈ values [T, K] · scales [T, 1]; values are integers in float32."""
    scales = (x.float().abs().amax(dim=1, keepdim=True) / 127).clamp_min(1e-30)
    return (x.float() / scales).round_(), scales


def rounded_to_e4m3(x: Tensor) -> Tensor:
    """Round x [T, K] to e4m3 with a scale for each row, and back. Computes in float32, or in x's float64."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    scales = (x.to(wide).abs().amax(dim=1, keepdim=True) / E4M3_MAX).clamp_min(1e-30)
    return ((x / scales).to(torch.float8_e4m3fn).to(wide) * scales).to(x.dtype)


def rounded(weight: Tensor | QuantizedWeight, *, bits: int = 16, is_fp8: bool = False) -> Tensor | QuantizedWeight:
    """Round a plain weight like `ops.pack_linear` or `ops.pack_fp8`, before a cut, which would change scales."""
    if not isinstance(weight, Tensor):
        return weight
    if is_fp8:
        return rounded_to_e4m3(weight)
    return quantize(weight, bits) if bits < 16 and can_quantize(weight, bits) else weight


def can_quantize(weight: Tensor, bits: int) -> bool:
    """True if this shape [N, K] has a layout: K is even, and for int4 a group divides K."""
    num_inputs = weight.shape[1]
    return num_inputs % 2 == 0 if bits == 8 else any(num_inputs % group == 0 for group in GROUPS)


def quantize(weight: Tensor, bits: int) -> QuantizedWeight:
    """Quantize a weight [N, K] of any float dtype to 8 or 4 bits. Needs at most some 700 MB meanwhile."""
    parts = [_quantize(rows, bits) for rows in torch.split(weight, max(1, _VALUES_AT_ONCE // weight.shape[1]))]
    if len(parts) == 1:
        return parts[0]
    offsets = [part.offsets for part in parts if part.offsets is not None]
    values, scales = torch.cat([part.values for part in parts]), torch.cat([part.scales for part in parts], dim=1)
    return QuantizedWeight(values, scales, torch.cat(offsets, dim=1) if offsets else None, bits)


def _quantize(weight: Tensor, bits: int) -> QuantizedWeight:
    if bits == 8:
        scales = (weight.float().abs().amax(dim=1) / 127).clamp_min(1e-30)
        values = (weight.float() / scales[:, None]).round_().to(torch.int8)
        return QuantizedWeight(values, scales[None].contiguous(), None, 8)
    assert bits == 4
    group = next(size for size in GROUPS if weight.shape[1] % size == 0)
    grouped = weight.float().view(len(weight), -1, group)
    low, high = grouped.amin(dim=2, keepdim=True), grouped.amax(dim=2, keepdim=True)
    best = torch.full_like(low, torch.inf)
    scales, offsets = torch.empty_like(low), torch.empty_like(low)
    values = torch.empty(grouped.shape, dtype=torch.uint8, device=weight.device)
    for shrink in _SHRINKS:
        scale = ((high - low) * (shrink / 15)).clamp_min(1e-30)
        offset = (low + high) / 2 - 7.5 * scale
        rounded = ((grouped - offset) / scale).round_().clamp_(0, 15)
        error = (rounded * scale + offset - grouped).square_().sum(dim=2, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        scales, offsets = torch.where(better, scale, scales), torch.where(better, offset, offsets)
        values = torch.where(better, rounded.to(torch.uint8), values)
    scales, offsets = (part.squeeze(2).T.contiguous() for part in (scales, offsets))
    return QuantizedWeight(values.view(weight.shape), scales, offsets, 4)


class Plane(NamedTuple):
    """Fields of `width` bits, 1, 2 or 4, in some bytes of a quantized block.

    Each run of bytes has the lowest fields of its bytes, then the next ones: a run of one byte has its own in a row.
    """

    begin: int
    num_bytes: int
    width: int
    run: int  # bytes


def unpack_codes(blocks: Tensor, low: Plane, high: Plane | None = None, *, middle: int = 0) -> Tensor:
    """Implement `ops.unpack_codes` with torch."""
    codes = _fields(blocks, low)
    if high is not None:
        codes |= _fields(blocks, high) << low.width
    return codes.view(torch.int8) - middle if middle else codes


def _fields(blocks: Tensor, plane: Plane) -> Tensor:
    """Return the fields of a plane, a byte each: eight bytes at a time if a run has as many."""
    word, mask = (torch.int64, 0x0101010101010101) if plane.run % 8 == 0 else (torch.uint8, 1)
    own = blocks[:, plane.begin : plane.begin + plane.num_bytes].clone(memory_format=torch.contiguous_format)
    runs = own.view(word).view(len(blocks), -1, 1, plane.run // word.itemsize)
    shifts = torch.arange(0, 8, plane.width, dtype=word, device=blocks.device)[:, None]
    fields: Tensor = runs >> shifts & mask * (2**plane.width - 1)
    return fields.view(torch.uint8).view(len(blocks), -1)
