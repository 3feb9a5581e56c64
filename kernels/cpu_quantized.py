"""Quantized weights on the CPU: laid out for cpu_quantized.cpp, or multiplied out where there is no compiler."""

from ctypes import CDLL

import torch
import torch.nn.functional as F
from torch import Tensor

from . import native
from .quantize import QuantizedWeight

_LANES, _VECTORS = 16, 4  # of a panel of outputs, as in cpu_quantized.cpp


class QuantizedLinear:
    """A weight of 8 or 4 bits and what multiplies it."""

    __slots__ = ("_bias", "_bits", "_data", "_group", "_library", "_num_outputs", "_offsets", "_scales")

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None, library: CDLL) -> None:
        self._library = library
        self._num_outputs = len(weight.values)
        self._bits, self._group, self._bias = weight.bits, weight.group, bias
        padding = -self._num_outputs % (_LANES * _VECTORS)
        self._data = _panels(F.pad(weight.values, (0, 0, 0, padding)), weight.bits)
        self._scales = F.pad(weight.scales, (0, padding)).contiguous()
        self._offsets = None
        if weight.offsets is not None:
            # The kernel multiplies by 128 + u, which is what its bits spell as a bfloat16.
            self._offsets = F.pad(weight.offsets - 128 * weight.scales, (0, padding)).contiguous()

    def multiply(self, x: Tensor) -> Tensor:
        """x [T, K] → [T, N]."""
        x = x.contiguous()
        out = x.new_empty(len(x), self._num_outputs)
        getattr(self._library, f"quantized_linear_{native.DTYPES[x.dtype]}")(
            x.data_ptr(),
            self._data.data_ptr(),
            self._scales.data_ptr(),
            None if self._offsets is None else self._offsets.data_ptr(),
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


def _panels(values: Tensor, bits: int) -> Tensor:
    """[N, K] → panels of 64 outputs; in them pairs of k for 16 outputs side by side; int4: two pairs in a byte."""
    num_outputs, num_inputs = values.shape
    pairs = 2 if bits == 4 else 1
    shape = (num_outputs // (_LANES * _VECTORS), _VECTORS, _LANES, num_inputs // (2 * pairs), pairs, 2)
    parts = values.view(shape).permute(4, 0, 3, 1, 2, 5)
    return (parts[0] | parts[1] << 4 if bits == 4 else parts[0]).contiguous()
