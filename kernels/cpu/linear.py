"""bfloat16 weights on the CPU: laid out once, for linear.cpp where it is the fastest, else for oneDNN or torch."""

import functools
from ctypes import CDLL

import torch
import torch.nn.functional as F
from torch import Tensor

from . import build

_PANEL = 32  # outputs side by side, as in linear.cpp


class NativeLinear:
    """A bfloat16 weight in panels for the native library."""

    __slots__ = ("_bias", "_data", "_library", "_num_inputs", "_num_outputs")

    def __init__(self, weight: Tensor, bias: Tensor | None, library: CDLL) -> None:
        self._num_outputs, self._num_inputs = weight.shape
        self._bias = None if bias is None else bias.contiguous()
        self._library = library
        self._data = _panels(weight)

    def multiply(self, x: Tensor) -> Tensor:
        """x [T, K] → [T, N]."""
        if self._num_inputs % 2:
            x = F.pad(x, (0, 1))
        x = x.contiguous()
        out = x.new_empty(len(x), self._num_outputs)
        self._library.linear_bfloat16(
            x.data_ptr(),
            self._data.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            out.data_ptr(),
            len(x),
            self._num_outputs,
            x.shape[1],
            torch.get_num_threads(),
        )
        return out


class OneDnnLinear:
    """A bfloat16 weight in oneDNN's layout, which it otherwise makes anew at every call."""

    __slots__ = ("_bias", "_packed")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._bias = bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def multiply(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return out


class PlainLinear:
    """A weight as it is, for torch."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight.contiguous(), bias

    def multiply(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


Linear = NativeLinear | OneDnnLinear | PlainLinear


def pack(weight: Tensor, bias: Tensor | None) -> Linear:
    """The fastest layout of a weight [N, K]. What decides is the processor, so results are the same at every start."""
    if weight.dtype != torch.bfloat16:
        return PlainLinear(weight, bias)
    library = build.library()
    if library is not None and not _has_amx():
        return NativeLinear(weight, bias, library)
    return OneDnnLinear(weight, bias) if _onednn_multiplies_bfloat16() else PlainLinear(weight, bias)


@functools.cache
def _has_amx() -> bool:
    """AMX multiplies several times what AVX-512 does, and oneDNN uses it."""
    return torch.cpu._is_amx_tile_supported()


@functools.cache
def _onednn_multiplies_bfloat16() -> bool:
    return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _panels(weight: Tensor) -> Tensor:
    """[N, K] → [panels, K / 2, 32, 2], zeros where N and K have no more."""
    num_outputs, num_inputs = weight.shape
    if num_outputs % _PANEL or num_inputs % 2:
        weight = F.pad(weight, (0, num_inputs % 2, 0, -num_outputs % _PANEL))
    pairs = weight.contiguous().view(torch.int32)
    return pairs.view(-1, _PANEL, pairs.shape[1]).transpose(1, 2).contiguous()
