"""Quantized weights on the CPU: laid out for quantized_linear.cpp, or multiplied out where there is no compiler."""

from ctypes import CDLL

import torch
import torch.nn.functional as F
from torch import Tensor

from ..quantize import QuantizedWeight
from . import build

_PANEL = 32  # outputs side by side, as in panels.h


class QuantizedLinear:
    """A weight of 8 or 4 bits and what multiplies it."""

    __slots__ = ("_bias", "_bits", "_data", "_group", "_library", "_num_outputs")

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, library: CDLL) -> None:
        self._library = library
        self._num_outputs = len(weight.values)
        self._bits, self._group, self._bias = weight.bits, weight.group, bias
        self._data = _panels(weight)

    def multiply(self, x: Tensor) -> Tensor:
        """x [T, K] → [T, N]."""
        x = x.contiguous()
        out = x.new_empty(len(x), self._num_outputs)
        getattr(self._library, f"quantized_linear_{build.DTYPES[x.dtype]}")(
            x.data_ptr(),
            self._data.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            out.data_ptr(),
            len(x),
            self._num_outputs,
            x.shape[1],
            self._group,
            self._bits,
            torch.get_num_threads(),
        )
        return out


def _panels(weight: QuantizedWeight) -> Tensor:
    """[N, K] → [panels, groups, bytes]: the scales (and offsets) of 32 outputs, then their pairs of k side by side.

    int4: two pairs of k in a byte.
    """
    padding = -len(weight.values) % _PANEL
    values = F.pad(weight.values, (0, 0, 0, padding))
    pairs = 2 if weight.bits == 4 else 1
    num_groups = len(weight.scales)
    shape = (-1, _PANEL, num_groups, weight.group // (2 * pairs), pairs, 2)
    parts = values.view(shape).permute(4, 0, 2, 3, 1, 5)
    packed = parts[0] | parts[1] << 4 if pairs == 2 else parts[0]
    packed = packed.reshape(len(packed), num_groups, -1).view(torch.uint8)
    headers = [
        F.pad(part, (0, padding)).view(num_groups, -1, _PANEL).transpose(0, 1).contiguous().view(torch.uint8)
        for part in (weight.scales, weight.offsets)
        if part is not None
    ]
    return torch.cat((*headers, packed), dim=2)
