"""Quantized weights on the CPU: laid out for quantized_linear.cpp, or multiplied out where there is no compiler."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..quantize import QuantizedWeight
from .build import DTYPES, Library
from .linear import PANEL, NativeLinear


class QuantizedLinear(NativeLinear):
    """A weight of 8 or 4 bits and what multiplies by it."""

    __slots__ = ()

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, library: Library, dtype: torch.dtype) -> None:
        run = partial(library[f"quantized_linear_{DTYPES[dtype]}"], group=weight.group, bits=weight.bits)
        super().__init__(run, _panels(weight), bias, num_outputs=len(weight.values))


def _panels(weight: QuantizedWeight) -> Tensor:
    """[N, K] → [panels, groups, bytes]: the scales (and offsets) of 32 outputs, then their pairs of k side by side.

    int4: two pairs of k in a byte.
    """
    padding = -len(weight.values) % PANEL
    values = F.pad(weight.values, (0, 0, 0, padding))
    pairs = 2 if weight.bits == 4 else 1
    num_groups = len(weight.scales)
    shape = (-1, PANEL, num_groups, weight.group // (2 * pairs), pairs, 2)
    parts = values.view(shape).permute(4, 0, 2, 3, 1, 5)
    packed = parts[0] | parts[1] << 4 if pairs == 2 else parts[0]
    packed = packed.reshape(len(packed), num_groups, -1).view(torch.uint8)
    headers = [
        F.pad(part, (0, padding)).view(num_groups, -1, PANEL).transpose(0, 1).contiguous().view(torch.uint8)
        for part in (weight.scales, weight.offsets)
        if part is not None
    ]
    return torch.cat((*headers, packed), dim=2)
