"""RowParallelLinear: a weight whose columns are spread over ranks, so that the product is a sum over ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .quantize import QuantizedWeight, rounded


class RowParallelLinear:
    """This rank's slices of the columns, packed as separate weights: the terms of the sum."""

    __slots__ = ("_backend", "_group", "_num_outputs", "_slices", "_width")

    def __init__(self, slices: Sequence[Any], group: Any, backend: Any, *, num_outputs: int, width: int) -> None:
        """`width`: number of inputs of a slice."""
        self._slices, self._group, self._backend = slices, group, backend
        self._num_outputs, self._width = num_outputs, width

    def multiply(self, x: Tensor) -> Tensor:
        """Multiply x [T, inputs of this rank] → [T, N], equal on every rank."""
        total: Tensor = self._group.sum(self._partials(x), width=self._num_outputs)
        return total

    def _partials(self, x: Tensor) -> Any:
        count = len(self._slices)
        if count == 1:
            return self._backend.linear(x, self._slices[0])
        pairs = zip(x.split_with_sizes([self._width] * count, dim=1), self._slices, strict=True)
        if not all(hasattr(part, "multiply_into") for part in self._slices):
            return torch.cat([self._backend.linear(piece.contiguous(), part) for piece, part in pairs], dim=1)
        out = x.new_empty(len(x), count * self._num_outputs)
        for (piece, part), into in zip(pairs, out.split_with_sizes([self._num_outputs] * count, dim=1), strict=True):
            part.multiply_into(piece, into)
        return out


def pack_row_parallel(
    weight: Tensor | QuantizedWeight, bias: Tensor | None, columns: Sequence[slice], group: Any, backend: Any, *,
    dtype: torch.dtype, bits: int, input_bits: int, is_fp8: bool,
) -> RowParallelLinear:  # fmt: skip
    """Implement `ops.pack_row_parallel`. The weight is rounded before it is cut, so scales do not depend on ranks."""
    num_outputs = len(weight if isinstance(weight, Tensor) else weight.values)
    places = list(zip(columns, [bias, *[None] * (len(columns) - 1)], strict=True))  # a bias is added once
    if isinstance(weight, Tensor) and is_fp8:
        slices = backend.pack_fp8_columns(weight, places)
    elif isinstance(whole := rounded(weight, bits=bits), Tensor):
        slices = [backend.pack_linear(whole[:, part].contiguous(), own) for part, own in places]
    else:
        slices = [
            backend.pack_quantized([whole.columns(part)], own, dtype=dtype, input_bits=input_bits)
            for part, own in places
        ]
    return RowParallelLinear(slices, group, backend, num_outputs=num_outputs, width=columns[0].stop - columns[0].start)
