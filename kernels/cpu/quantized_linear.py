"""Packed quantized weights on the CPU: laid out for quantized_linear.h, or dequantized without a compiler."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import large_pages
from ..quantize import QuantizedWeight, dequantized, merged, multiplied, round_rows
from .build import DTYPES, Library
from .linear import BLOCK, PANEL, Linear, NativeLinear, pack

_HALF_BLOCK = 16
_UNITS = (1.0, 1 / 8)  # an upper level of IQ2 is an eighth of a half
_INPUT_GROUPS = (128, 64, 32, 16)


class QuantizedLinear:
    """Weight of 4 to 8 bits, with the ops that multiply by it and take rows of it."""

    __slots__ = ("_bias", "_dtype", "_embed", "_multiply", "_shape", "order")

    def __init__(
        self, weight: QuantizedWeight, bias: Tensor | None, library: Library, dtype: torch.dtype, *, input_bits: int
    ) -> None:
        layout, inputs = _layout(weight, library), _input_rounding(weight, input_bits)
        self._shape, self.order, self._dtype = weight.values.shape, weight.order, dtype
        self._bias = None if bias is None else bias.contiguous()
        self._multiply = partial(library[f"quantized_linear_{DTYPES[dtype]}"], **inputs, **layout)
        self._embed = partial(library[f"quantized_embedding_{DTYPES[dtype]}"], **layout)

    @property
    def num_outputs(self) -> int:
        return self._shape[0]

    @property
    def num_inputs(self) -> int:
        return self._shape[1]

    def multiply(self, x: Tensor) -> Tensor:
        """Multiply: x [T, K] → [T, N]."""
        out = x.new_empty(len(x), self.num_outputs)
        self.multiply_into(x, out)
        return out

    def multiply_into(self, x: Tensor, out: Tensor) -> None:
        """Like multiply, but into `out` [T, N], which may be columns of a wider matrix."""
        self.multiply_ordered(x.contiguous() if self.order is None else x.index_select(1, self.order), out)

    def multiply_ordered(self, x: Tensor, out: Tensor) -> None:
        """Like multiply_into, for contiguous rows whose inputs are in the weight's own order."""
        self._multiply(
            x=x, bias=self._bias, out=out, num_rows=len(x), num_outputs=self.num_outputs, num_inputs=x.shape[1],
            out_row=out.stride(0),
        )  # fmt: skip

    def rows(self, ids: Tensor) -> Tensor:
        """Take rows: ids [T] int64 → [T, K]."""
        out = torch.empty(len(ids), self._shape[1], dtype=self._dtype)
        self._embed(ids=ids.contiguous(), out=out, num_rows=len(ids), num_inputs=self._shape[1])
        return out


class RoundingLinear:
    """Plain weight whose inputs are rounded to int8, a row at a time."""

    __slots__ = ("_bias", "_linear")

    def __init__(self, linear: Linear, bias: Tensor | None) -> None:
        self._linear, self._bias = linear, bias

    def multiply(self, x: Tensor) -> Tensor:
        values, scales = round_rows(x)
        out = self._linear.multiply(values.to(x.dtype)).float() * scales
        return (out if self._bias is None else out + self._bias.float()).to(x.dtype)


class StackedLinear:
    """Stack of weights of one input and different kinds."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence["AnyLinear"]) -> None:
        self.parts = parts

    def multiply(self, x: Tensor) -> Tensor:
        native = [part for part in self.parts if isinstance(part, QuantizedLinear | NativeLinear)]
        if len(native) < len(self.parts):
            return torch.cat([part.multiply(x) for part in self.parts], dim=1)
        sizes = [part.num_outputs for part in native]
        out = x.new_empty(len(x), sum(sizes))
        for part, columns in zip(native, out.split_with_sizes(sizes, dim=1), strict=True):
            part.multiply_into(x, columns)
        return out


class Table:
    """Weight for `multiply` and `rows` without the library: plain, with a packed copy."""

    __slots__ = ("_linear", "_weight")

    def __init__(self, weight: Tensor) -> None:
        self._weight, self._linear = weight, pack(weight, None)

    def multiply(self, x: Tensor) -> Tensor:
        return self._linear.multiply(x)

    def rows(self, ids: Tensor) -> Tensor:
        return self._weight.index_select(0, ids)


AnyLinear = Linear | QuantizedLinear | RoundingLinear | StackedLinear | Table


def pack_parts(
    parts: Sequence[QuantizedWeight],
    bias: Tensor | None,
    library: Library | None,
    dtype: torch.dtype,
    *,
    input_bits: int,
) -> AnyLinear:
    """Pack weights of one input: natively if the library can, else widened to `dtype`."""
    kinds = merged(parts)
    sizes = [len(kind.values) for kind in kinds]
    biases = [None] * len(kinds) if bias is None else torch.split(bias, sizes)
    packed = [
        _pack_kind(kind, part, library, dtype, input_bits=input_bits) for kind, part in zip(kinds, biases, strict=True)
    ]
    return packed[0] if len(packed) == 1 else StackedLinear(packed)


def pack_table(
    weight: QuantizedWeight, library: Library | None, dtype: torch.dtype, *, input_bits: int
) -> QuantizedLinear | Table:
    """Pack a weight for `multiply` and `rows`."""
    if library is None or not _is_native(weight, dtype) or weight.order is not None:
        return Table(dequantized([weight], dtype))
    return QuantizedLinear(weight, None, library, dtype, input_bits=input_bits)


def _pack_kind(
    weight: QuantizedWeight, bias: Tensor | None, library: Library | None, dtype: torch.dtype, *, input_bits: int
) -> AnyLinear:
    if library is not None and _is_native(weight, dtype):
        return QuantizedLinear(weight, bias, library, dtype, input_bits=input_bits)
    if not weight.rounds_inputs:
        return pack(dequantized([weight], dtype), bias)
    return RoundingLinear(pack(dequantized([weight], dtype), None), bias)


def _is_native(weight: QuantizedWeight, dtype: torch.dtype) -> bool:
    """True if quantized.h has a layout for the weight: groups are whole half blocks, no value is NaN."""
    is_even = len(weight.scales) == 1 or weight.group % _HALF_BLOCK == 0
    return dtype in DTYPES and is_even and not (_is_float8(weight) and _has_nan(weight))


def _is_float8(weight: QuantizedWeight) -> bool:
    return weight.values.dtype == torch.float8_e4m3fn


def _has_nan(weight: QuantizedWeight) -> bool:
    return bool((weight.values.view(torch.uint8) & 0x7F == 0x7F).any())


def _num_padded(weight: QuantizedWeight) -> int:
    return weight.values.shape[1] + -weight.values.shape[1] % BLOCK


def _input_rounding(weight: QuantizedWeight, input_bits: int) -> dict[str, int]:
    """Return the bits of rounded inputs and the size of their groups: a row, or inputs that share a weight's scale."""
    padded = _num_padded(weight)
    if weight.rounds_inputs:
        return {"input_bits": 8, "input_group": padded}
    group = padded if len(weight.scales) == 1 else weight.group
    size = next(size for size in _INPUT_GROUPS if group % size == 0)
    return {"input_bits": 16 if _is_float8(weight) else input_bits, "input_group": size}


def _layout(weight: QuantizedWeight, library: Library) -> dict[str, Any]:
    """Return the weight as fields of quantized.h."""
    padded, group = _num_padded(weight), _padded_group(weight)
    zero = 2 ** (weight.bits - 1) if weight.values.dtype == torch.int8 else 0
    values, high = _values(weight, padded, zero, library)
    table, zero = _table(weight, zero)
    lowers, uppers, unit = _levels(weight)
    padded_groups = -(-padded // group)
    scales, offsets = (None if lower is None else _per_panel(lower, padded_groups) for lower in lowers)
    super_group = padded if uppers[0] is None else group * (len(weight.scales) // len(uppers[0]))
    supers = [None if upper is None else _per_panel(upper, -(-padded // super_group)) for upper in uppers]
    return {
        "values": values,
        "high": high,
        "table": table,
        "scales": scales,
        "offsets": offsets,
        "super_scales": supers[0],
        "super_offsets": supers[1],
        "bits": weight.bits,
        "zero": zero,
        "group": group,
        "super_group": super_group,
        "scale_bytes": scales.itemsize if scales is not None else 0,
        "is_float8": _is_float8(weight),
        "unit": unit,
    }


def _padded_group(weight: QuantizedWeight) -> int:
    return _num_padded(weight) if len(weight.scales) == 1 else weight.group


def _values(weight: QuantizedWeight, padded: int, zero: int, library: Library) -> tuple[Tensor, Tensor | None]:
    """Return the values in the layout of quantized.h and, for 3, 5 or 6 bits, the upper bits."""
    bits, num_panels = weight.bits, -(-len(weight.values) // PANEL)
    num_values = num_panels * PANEL * padded
    low = 8 if bits == 8 else 2 if bits < 4 else 4
    values = large_pages.empty(num_values * low // 8)
    high = large_pages.empty(num_values * (bits - low) // 8) if bits > low else None
    library["quantized_values"](
        codes=weight.values.contiguous(), values=values, high=high, num_outputs=len(weight.values),
        num_inputs=weight.values.shape[1], num_padded=padded, bits=bits, zero=zero,
    )  # fmt: skip
    return values, high


def _table(weight: QuantizedWeight, zero: int) -> tuple[Tensor | None, int]:
    """Return the numbers of codes in 3 or 4 bits plus the zero, [16] uint8, and the zero."""
    numbers = weight.codebook or (tuple(range(8)) if weight.bits == 3 else ())
    lowest = min(numbers, default=0)
    if numbers == tuple(range(lowest, lowest + 2**weight.bits)) and weight.bits != 3:
        return None, -lowest
    if not numbers:
        return None, zero
    table = torch.tensor([number - lowest for number in numbers], dtype=torch.uint8)
    return F.pad(table, (0, 16 - len(numbers))), zero - lowest


_Pair = tuple[Tensor | None, Tensor | None]


def _levels(weight: QuantizedWeight) -> tuple[_Pair, _Pair, float]:
    """Return two levels of scales and offsets, and the upper ones' unit.

    They are int8 under float16, else one level, in float16 if that is exact.
    """
    exponents = _exponents(weight.scales) if weight.is_float4 else None
    if exponents is not None:
        return (exponents, None), (None, None), 1.0
    lowers, uppers = (weight.scales, weight.offsets), (weight.super_scales, weight.super_offsets)
    if weight.super_scales is not None and all(map(_fits_int8, lowers)):
        for unit in _UNITS:
            units = [None if upper is None else upper.float() / unit for upper in uppers]
            if all(map(_fits_half, units)):
                return _as(lowers, torch.int8), _as(units, torch.float16), unit
    if weight.super_scales is not None and weight.scales.dtype == torch.float16:
        unit = float(weight.super_scales[0, 0])
        if bool((weight.super_scales == unit).all()):
            return (weight.scales, None), (None, None), unit
    wide = [None if lower is None else multiplied(lower, upper) for lower, upper in zip(lowers, uppers, strict=True)]
    return _as(wide, torch.float16 if all(map(_fits_half, wide)) else torch.float32), (None, None), 1.0


def _exponents(scales: Tensor) -> Tensor | None:
    """Return powers of two as the exponents of floats, uint8; None if others are among them."""
    bits = scales.float().view(torch.int32)
    exponents = bits >> 23
    is_power = torch.equal(exponents << 23, bits) and bool(((exponents > 0) & (exponents < 255)).all())
    return exponents.to(torch.uint8) if is_power else None


def _fits_int8(part: Tensor | None) -> bool:
    return part is None or (not part.is_floating_point() and bool((part.abs() <= 127).all()))


def _fits_half(part: Tensor | None) -> bool:
    return part is None or part.dtype == torch.float16 or torch.equal(part.half().float(), part.float())


def _as(pair: Sequence[Tensor | None], dtype: torch.dtype) -> _Pair:
    first, second = (None if part is None else part.to(dtype) for part in pair)
    return first, second


def _per_panel(part: Tensor, num_groups: int) -> Tensor:
    """Lay out [G, N] as [panels, num_groups, 32], padded with zeros."""
    padded = F.pad(part, (0, -part.shape[1] % PANEL, 0, num_groups - len(part)))
    return large_pages.contiguous(padded.view(num_groups, -1, PANEL).transpose(0, 1))
