"""NVIDIA's ModelOpt: FP8 with a scale per weight or output, and NVFP4, perhaps both in one checkpoint.

FP8: weight [N, K] float8_e4m3fn and weight_scale. NVFP4: weight [N, K / 2] uint8, two codes of e2m1, the lower half
first, weight_scale [N, K / 16] float8_e4m3fn and weight_scale_2 []: w = weight_scale_2 · weight_scale · e2m1. Inputs
are not rounded, which loses less.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import E2M1, QuantizedWeight
from ..checkpoint_format import LinearTensors
from .affine import one_of, unpack
from .fp8 import FP8

_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "MIXED_PRECISION")
_GROUP = 16


@dataclass(frozen=True)
class ModelOpt:
    """Quantized weights of the linears that have scales; the others are unquantized."""

    algorithm: str

    @property
    def name(self) -> str:
        return f"ModelOpt {self.algorithm}, inputs in 16 bits"

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> QuantizedWeight | None:
        if not linear.has("weight_scale_2"):
            return FP8(None).weight(linear, shape)
        unit = linear.take("weight_scale_2", (), (1,), dtypes=(torch.float32,))
        return float4_weight(linear, "weight", shape, unit)

    def ignores(self, name: str, take: Callable[[str], Tensor]) -> bool:
        return name.endswith((".input_scale", ".k_scale", ".v_scale"))


def float4_weight(linear: LinearTensors, part: str, shape: tuple[int, int], unit: Tensor) -> QuantizedWeight:
    """Take the NVFP4 weight [N, K] of a linear under the name `part`, with weight_scale in `unit`, one number."""
    num_outputs, num_inputs = shape
    packed = linear.take(part, (num_outputs, num_inputs // 2), dtypes=(torch.uint8,))
    scales = linear.take("weight_scale", (num_outputs, num_inputs // _GROUP), dtypes=(torch.float8_e4m3fn,))
    units = (unit / 2).expand(1, num_outputs).contiguous()  # the codebook's numbers are doubled
    codes = unpack(packed, 4)
    return QuantizedWeight(codes, scales.half().T.contiguous(), None, 4, super_scales=units, codebook=E2M1)


def parse(fields: Mapping[str, Any]) -> ModelOpt:
    """Read the format from quantization_config. Raises ConfigError."""
    return ModelOpt(one_of(fields, "quant_algo", _ALGORITHMS))
