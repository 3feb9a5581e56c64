"""RowParallelLinear: a weight whose columns are spread over GPUs, so that the product is a sum over ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...quantize import QuantizedWeight, rounded
from .. import backend
from . import fp8_linear


class RowParallelLinear:
    """This rank's slices of the columns, packed as separate weights: the terms of the sum."""

    __slots__ = ("_group", "_num_outputs", "_slices", "_width")

    def __init__(self, slices: Sequence[backend.AnyLinear], group: Any, *, num_outputs: int, width: int) -> None:
        """`width`: number of inputs of a slice."""
        self._slices, self._group, self._num_outputs, self._width = slices, group, num_outputs, width

    def multiply(self, x: Tensor) -> Tensor:
        """Multiply x [T, inputs of this rank] → [T, N], equal on every rank."""
        return self._group.sum(self._partials(x), width=self._num_outputs)  # type: ignore[no-any-return]

    def _partials(self, x: Tensor) -> Tensor:
        if len(self._slices) == 1:
            return backend.linear(x, self._slices[0])
        inputs = x.split_with_sizes([self._width] * len(self._slices), dim=1)
        pairs = zip(inputs, self._slices, strict=True)
        return torch.cat([backend.linear(part.contiguous(), packed) for part, packed in pairs], dim=1)


def pack_row_parallel(
    weight: Tensor | QuantizedWeight,
    bias: Tensor | None,
    columns: Sequence[slice],
    group: Any,
    *,
    dtype: torch.dtype,
    bits: int,
    input_bits: int,
    is_fp8: bool,
) -> RowParallelLinear:
    """Implement `ops.pack_row_parallel`. The weight is rounded before it is cut, so scales do not depend on ranks."""
    num_outputs = len(weight if isinstance(weight, Tensor) else weight.values)
    e4m3 = None
    if isinstance(weight, Tensor) and is_fp8 and all(fp8_linear.can_round(weight[:, part]) for part in columns):
        e4m3 = fp8_linear.round_rows(weight)
    elif not is_fp8:
        weight = rounded(weight, bits=bits)
    slices: list[backend.AnyLinear] = []
    for part in columns:
        own_bias = None if slices else bias  # added once, by the first slice
        if e4m3 is not None:
            slices.append(fp8_linear.Fp8Linear(e4m3[0][:, part].contiguous(), e4m3[1], own_bias))
        elif isinstance(weight, Tensor):
            slices.append(backend.PackedLinear(weight[:, part].contiguous(), own_bias))
        else:
            cut = weight.columns(part)
            slices.append(backend.pack_quantized([cut], own_bias, dtype=dtype, input_bits=input_bits))
    return RowParallelLinear(slices, group, num_outputs=num_outputs, width=columns[0].stop - columns[0].start)
