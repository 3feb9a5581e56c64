"""torchao's weights in safetensors: int8, int4 and FP8, in groups, rows or whole.

_weight_qdata: int8 or float8_e4m3fn [N, K] with _weight_scale and perhaps _weight_zero_point [rows, groups], or two
int4 a byte, the lower half first, [N, K / 2], with both [G, N], where the zero point is the value of code 0. Inputs are
not rounded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight
from ...errors import ConfigError
from ..checkpoint_format import LinearTensors
from .affine import SCALE_DTYPES, block_scales, storable_scales, unpack

_QDATA, _SCALE, _ZERO, _INPUT_SCALE = (f"_weight_{part}" for part in ("qdata", "scale", "zero_point", "act_pre_scale"))


@dataclass(frozen=True)
class TorchAO:
    """Weights of the linears that have qdata; the others are unquantized."""

    kind: str

    @property
    def name(self) -> str:
        return f"torchao {self.kind}, inputs in 16 bits"

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> QuantizedWeight | None:
        if not linear.has(_QDATA):
            return None
        values = linear.take_tensor(f"{linear.name}.{_QDATA}")
        is_whole = tuple(values.shape) == shape and values.dtype in (torch.int8, torch.float8_e4m3fn)
        is_packed = tuple(values.shape) == (shape[0], shape[1] // 2) and values.dtype in (torch.int8, torch.uint8)
        if not (is_whole or is_packed) or linear.has(_INPUT_SCALE):
            raise ConfigError(f"{linear.name} is in a layout of torchao that is not supported; save it as plain int4")
        scales = linear.take_tensor(f"{linear.name}.{_SCALE}")
        zeros = linear.take_tensor(f"{linear.name}.{_ZERO}") if linear.has(_ZERO) else None
        is_right = scales.dtype in SCALE_DTYPES and scales.dim() == 2 and scales.numel() > 0
        if not is_right or (zeros is not None and zeros.shape != scales.shape):
            raise ConfigError(f"{linear.name}.{_SCALE} and its zero points do not match; fetch the checkpoint again")
        (num_groups, length), inputs = scales.shape, shape[1]
        if is_packed and length == shape[0] and inputs % num_groups == 0 and zeros is not None:
            codes = (unpack(values, 4) ^ 8).view(torch.int8) - 8
            return QuantizedWeight(codes, storable_scales(scales), zeros.to(storable_scales(scales).dtype), 4)
        if not is_whole or shape[0] % num_groups or inputs % length:
            raise ConfigError(f"{linear.name}.{_SCALE} does not fit {list(shape)}; fetch the checkpoint again")
        block = shape[0] // num_groups, inputs // length
        spread = block_scales(scales, shape, block)
        offsets = None
        if zeros is not None and bool(zeros.any()):
            offsets = -spread.float() * block_scales(zeros.float(), shape, block)
        is_int4 = values.dtype == torch.int8 and bool(((values >= -8) & (values < 8)).all())
        return QuantizedWeight(values, spread, offsets, 4 if is_int4 else 8)

    def ignores(self, name: str, take: Callable[[str], Tensor]) -> bool:
        return name.endswith(("_act_quant_scale", "_act_quant_zero_point"))


def parse(fields: Mapping[str, Any]) -> TorchAO:
    """Read the format from quantization_config."""
    kinds = fields.get("quant_type")
    default = kinds.get("default") if isinstance(kinds, dict) else None
    kind = default.get("_type") if isinstance(default, dict) else kinds
    return TorchAO(f"{kind or 'weights'!s:.40}")
