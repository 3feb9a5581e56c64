"""RowParallelLinear: a weight whose columns are spread over ranks, so that the product is a sum over ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..quantize import QuantizedWeight, rounded
from . import build
from .linear import pack
from .quantized_linear import AnyLinear, pack_parts
from .rank_group import RankGroup


class RowParallelLinear:
    """This rank's slices of the columns, packed as separate weights: the terms of the sum."""

    __slots__ = ("_group", "_num_outputs", "_slices", "_width")

    def __init__(self, slices: Sequence[AnyLinear], group: RankGroup, *, num_outputs: int, width: int) -> None:
        """`width`: number of inputs of a slice."""
        self._slices, self._group, self._num_outputs, self._width = slices, group, num_outputs, width

    def multiply(self, x: Tensor) -> Tensor:
        """Multiply x [T, inputs of this rank] → [T, N], equal on every rank."""
        return self._group.sum(self._partials(x), width=self._num_outputs)

    def _partials(self, x: Tensor) -> Tensor:
        if len(self._slices) == 1:
            return self._slices[0].multiply(x)
        count = len(self._slices)
        out = x.new_empty(len(x), count * self._num_outputs)
        columns = out.split_with_sizes([self._num_outputs] * count, dim=1)
        inputs = x.split_with_sizes([self._width] * count, dim=1)
        for part, piece, into in zip(self._slices, inputs, columns, strict=True):
            if hasattr(part, "multiply_into"):
                part.multiply_into(piece, into)
            else:
                into.copy_(part.multiply(piece))
        return out


def pack_row_parallel(
    weight: Tensor | QuantizedWeight,
    bias: Tensor | None,
    columns: Sequence[slice],
    group: RankGroup,
    *,
    dtype: torch.dtype,
    bits: int,
    input_bits: int,
    is_fp8: bool,
) -> RowParallelLinear:
    """Implement `ops.pack_row_parallel`. The weight is rounded before it is cut, so scales do not depend on ranks."""
    weight = rounded(weight, bits=bits, is_fp8=is_fp8)
    slices: list[AnyLinear] = []
    for part in columns:
        own_bias = None if slices else bias  # added once, by the first slice
        if isinstance(weight, Tensor):
            slices.append(pack(weight[:, part], own_bias))
        else:
            parts = [weight.columns(part)]
            slices.append(pack_parts(parts, own_bias, build.library(), dtype, input_bits=input_bits))
    num_outputs = len(weight if isinstance(weight, Tensor) else weight.values)
    return RowParallelLinear(slices, group, num_outputs=num_outputs, width=columns[0].stop - columns[0].start)
