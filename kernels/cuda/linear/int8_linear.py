"""Products of int8 and int8 (W8A8): y = (x₈ w₈ᵀ) · x's scale · w's scale, a scale for each token and output.

For linears and experts of checkpoints that define rounded activations. x is rounded token by token in a kernel of its
own, then byte_linear.py multiplies. Sums are integers and exact, so neither the tile nor a split of K nor the number of
rows changes a bit.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ...quantize import QuantizedWeight
from . import byte_linear, few_rows
from .byte_linear import Config
from .fp8_linear import round_rows

_MAX_INPUTS = 2**31 // (127 * 128)  # beyond, a sum could leave int32: files may hold -128


class Int8Linear(NamedTuple):
    """Weight [N, K] in int8."""

    values: Tensor  # [N, K] int8
    scales: Tensor  # [N] float32
    bias: Tensor | None  # [N]


def has_layout(weight: QuantizedWeight) -> bool:
    """True for symmetric int8 with one scale for each output, and inputs in multiples of a 16-byte load."""
    is_plain = weight.bits == 8 and len(weight.scales) == 1 and weight.offsets is None and weight.super_scales is None
    num_inputs = weight.values.shape[1]
    return is_plain and weight.values.dtype == torch.int8 and num_inputs % 16 == 0 and num_inputs <= _MAX_INPUTS


def pack(weight: QuantizedWeight, bias: Tensor | None) -> Int8Linear:
    """Pack a weight that has a layout. `order` is dropped."""
    return Int8Linear(weight.values.contiguous(), weight.scales[0].float().contiguous(), bias)


def multiply(x: Tensor, packed: Int8Linear, *, config: Config | None = None, num_splits: int | None = None) -> Tensor:
    """x [T, K] with contiguous rows → [T, N] in x's dtype."""
    weight, rounded = few_rows.Weight(*packed), round_rows(x, dtype=torch.int8)
    return byte_linear.multiply(*rounded, weight, dtype=x.dtype, config=config, num_splits=num_splits)
