"""Packed weights on the CPU: laid out once for linear.cpp, or without the library for oneDNN or torch.

Products of adapters, by adapters.cpp, or without the library by torch.
"""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import large_pages
from ..arguments import AdapterPlace
from . import build

PANEL, BLOCK = 32, 32  # outputs of a panel, and the multiple to which inputs are padded, as in panels.h


class NativeLinear:
    """Weight in panels for the native library, with the op that multiplies by it."""

    __slots__ = ("_bias", "_data", "_run", "num_inputs", "num_outputs")
    order = None

    def __init__(
        self, run: Callable[..., None], data: Tensor, bias: Tensor | None, *, num_outputs: int, num_inputs: int
    ) -> None:
        self._run, self._data, self.num_outputs, self.num_inputs = run, data, num_outputs, num_inputs
        self._bias = None if bias is None else bias.contiguous()

    def multiply(self, x: Tensor) -> Tensor:
        """Multiply: x [T, K] → [T, N]."""
        out = x.new_empty(len(x), self.num_outputs)
        self.multiply_into(x, out)
        return out

    def multiply_into(self, x: Tensor, out: Tensor) -> None:
        """Like multiply, but into `out` [T, N], which may be columns of a wider matrix."""
        x = x.contiguous()
        self._run(
            x=x, data=self._data, bias=self._bias, out=out, num_rows=len(x), num_outputs=self.num_outputs,
            num_inputs=x.shape[1], out_row=out.stride(0),
        )  # fmt: skip

    multiply_ordered = multiply_into


class OneDnnLinear:
    """Weight in bfloat16 in oneDNN's layout, which oneDNN would otherwise make at every call."""

    __slots__ = ("_bias", "_packed")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._bias = bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def multiply(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return out


class PlainLinear:
    """Weight in its own layout, for torch."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight.contiguous(), bias

    def multiply(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


Linear = NativeLinear | OneDnnLinear | PlainLinear


def pack(weight: Tensor, bias: Tensor | None) -> Linear:
    """Pack a weight [N, K] in the fastest layout. Only the processor decides, so results are equal at every start."""
    library = build.library()
    if library is not None and weight.dtype in build.DTYPES:
        run = library[f"linear_{build.DTYPES[weight.dtype]}"]
        return NativeLinear(run, panels(weight), bias, num_outputs=len(weight), num_inputs=weight.shape[1])
    if weight.dtype == torch.bfloat16 and _onednn_multiplies_bfloat16():
        return OneDnnLinear(weight, bias)
    return PlainLinear(weight, bias)


@functools.cache
def _onednn_multiplies_bfloat16() -> bool:
    return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def panels(weight: Tensor) -> Tensor:
    """Lay out [N, K] as [panels, K, 32], in bfloat16 as [panels, K / 2, 32, 2]; N and K are padded with zeros."""
    num_outputs, num_inputs = weight.shape
    if num_outputs % PANEL or num_inputs % BLOCK:
        weight = F.pad(weight, (0, -num_inputs % BLOCK, 0, -num_outputs % PANEL))
    words = weight.contiguous().view(torch.int32)
    return large_pages.contiguous(words.view(-1, PANEL, words.shape[1]).transpose(1, 2))


def packs_adapters(dtype: torch.dtype) -> bool:
    """True if the CPU's native library multiplies adapters of this dtype."""
    return build.op("add_adapters", build.DTYPES.get(dtype)) is not None


def add_adapters(out: Tensor, x: Tensor, tiles: Tensor, place: AdapterPlace) -> None:
    """Implement `ops.add_adapters` with the native library, or without it with torch."""
    run = build.op("add_adapters", build.DTYPES.get(x.dtype))
    if run is None:
        from ..adapters import add_in_torch

        add_in_torch(out, x, tiles, place)
        return
    x = x.contiguous()
    run(
        x=x, out=out, tiles=tiles, outputs=place.outputs, num_tiles=len(tiles), first_part=place.first,
        num_parts=len(place.outputs), num_inputs=x.shape[1], num_outputs=out.shape[1],
    )  # fmt: skip
