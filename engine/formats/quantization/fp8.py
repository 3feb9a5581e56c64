"""FP8 weights (e4m3) with a scale per block, the format of DeepSeek-V3 and Qwen3, or one per weight or output.

weight [N, K] float8_e4m3fn; weight_scale_inv [⌈N / rows⌉, ⌈K / columns⌉], or weight_scale [] or [N, 1]: w =
scale · value, despite "inv" in the name. Activations are not rounded to FP8: without products in FP8, rounding would
only lose accuracy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight
from ...errors import ConfigError
from ..checkpoint_format import LinearTensors
from .affine import SCALE_DTYPES, block_scales


@dataclass(frozen=True)
class FP8:
    """FP8 weights of the linears that have a scale; the others are unquantized."""

    block: tuple[int, int] | None  # rows and columns that share a scale; None: all

    @property
    def name(self) -> str:
        return (
            "FP8, one scale per weight or output"
            if self.block is None
            else "FP8 in blocks of {} x {}".format(*self.block)
        )

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> QuantizedWeight | None:
        scale = next((part for part in ("weight_scale_inv", "weight_scale") if linear.has(part)), None)
        return None if scale is None else float_weight(linear, scale, shape, self.block or shape)

    def ignores(self, name: str, take: Callable[[str], Tensor]) -> bool:
        return name.endswith((".input_scale", ".input_scale_ub", ".activation_scale", ".k_scale", ".v_scale"))


def float_weight(linear: LinearTensors, scale: str, shape: tuple[int, int], block: tuple[int, int]) -> QuantizedWeight:
    """Take the FP8 weight [N, K] of a linear, with a scale under the name `scale` per block of rows and columns."""
    values = linear.take("weight", shape, dtypes=(torch.float8_e4m3fn,))
    return QuantizedWeight(values, take_scales(linear, scale, shape, block), None, 8)


def take_scales(
    linear: LinearTensors,
    part: str,
    shape: tuple[int, int],
    block: tuple[int, int],
    *,
    dtypes: tuple[torch.dtype, ...] = (*SCALE_DTYPES, torch.float8_e8m0fnu, torch.uint8),
) -> Tensor:
    """Take the scales of a weight's blocks as [G, N]. With one scale per row the tensor may lack the column axis.

    A block of the whole weight may have a scale for each row, too.
    """
    rows, columns = ceil(shape[0] / block[0]), ceil(shape[1] / block[1])
    shapes: list[tuple[int, ...]] = [(rows, columns)]
    if columns == 1:
        shapes += [(rows,), ()] if rows == 1 else [(rows,)]
    if block == shape:
        shapes += [(shape[0],), (shape[0], 1)]
    scales = linear.take(part, *shapes, dtypes=dtypes)
    if scales.numel() > rows * columns:
        rows, block = shape[0], (1, shape[1])
    if scales.dtype == torch.uint8:
        scales = scales.view(torch.float8_e8m0fnu)
    return block_scales(scales.view(rows, columns), shape, block)


def parse(fields: Mapping[str, Any]) -> FP8:
    """Read the format from quantization_config. Raises ConfigError."""
    if fields.get("expert_dtype") not in (None, "fp8"):
        raise ConfigError(f"experts in {fields['expert_dtype']!r:.100} are not supported")
    block = fields.get("weight_block_size")
    return FP8(None if block is None else block_of(block))


def block_of(block: Any) -> tuple[int, int]:
    """Return two positive integers, from a list or a text like "128x128". Raises ConfigError."""
    sides: list[Any] = list(block) if isinstance(block, list) else str(block).split("x")
    if isinstance(block, str):
        sides = [int(side) if side.isdecimal() and len(side) < 10 else side for side in sides]
    if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
        raise ConfigError(f"a block must be two positive integers, not {block!r:.100}")
    return sides[0], sides[1]
