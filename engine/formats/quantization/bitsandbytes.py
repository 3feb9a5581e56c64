"""bitsandbytes (Dettmers et al. 2022, 2023): NF4 or FP4 in blocks of a row, perhaps with rounded scales; and int8.

4 bits: weight uint8, codes of quant_map, the upper half of a byte first; absmax of each block, or its code of
nested_quant_map with nested_absmax and an offset. The 16 numbers become int8, which is the only loss. int8: weight
[N, K] and SCB [N]: w = SCB · value / 127. Inputs are not rounded.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight
from ...errors import ConfigError
from ..checkpoint_format import LinearTensors
from .affine import one_of, unpack

_MAX_BLOCK = 2**20
# Root of the mean square of what rounding the 16 numbers changes, relative to normal weights in blocks of 64.
_LOSSES = {"nf4": "0.49 %", "fp4": "0.35 %"}


@dataclass(frozen=True)
class BitsAndBytes:
    """Weights of the linears that have scales; the others are unquantized."""

    kind: str

    @property
    def name(self) -> str:
        loss = f", numbers rounded to int8 (error {_LOSSES[self.kind]})" if self.kind in _LOSSES else ""
        return f"bitsandbytes {self.kind.upper()}{loss}"

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> QuantizedWeight | None:
        if linear.has("SCB"):
            values = linear.take("weight", shape, dtypes=(torch.int8,))
            scales = linear.take("SCB", (shape[0],), dtypes=(torch.float32, torch.float16))
            return QuantizedWeight(values, scales.float()[None] / 127, None, 8)
        if not linear.has("weight.absmax"):
            return None
        num_outputs, num_inputs = shape
        state = self._state(linear)
        size, num_bytes = state["blocksize"], num_outputs * num_inputs // 2
        group = gcd(size, num_inputs)  # blocks need not end with a row
        packed = linear.take("weight", (num_bytes, 1), (1, num_bytes), dtypes=(torch.uint8,)).flatten()
        codes = unpack((packed >> 4 | packed << 4)[None], 4).view(shape)
        levels = linear.take("weight.quant_map", (16,), dtypes=(torch.float32,))
        unit, codebook = _codebook(levels)
        absmax = self._absmax(linear, state, -(-2 * num_bytes // size)).repeat_interleave(size // group)
        scales = absmax[: 2 * num_bytes // group].view(num_outputs, -1) / unit
        return QuantizedWeight(codes, scales.T.contiguous(), None, 4, codebook=codebook)

    def _state(self, linear: LinearTensors) -> Any:
        name = f"{linear.name}.weight.quant_state.bitsandbytes__{self.kind}"
        try:
            state = json.loads(bytes(linear.take_tensor(name).tolist()))
            sizes = state["blocksize"], state.get("nested_blocksize", 1)
            if all(type(size) is int and 0 < size < _MAX_BLOCK for size in sizes):
                return {"nested_blocksize": 1, **state, "nested_offset": float(state.get("nested_offset", 0))}
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        raise ConfigError(f"{name} does not give blocks; fetch the checkpoint again")

    def _absmax(self, linear: LinearTensors, state: Any, count: int) -> Tensor:
        absmax = linear.take("weight.absmax", (count,), dtypes=(torch.uint8, torch.float32))
        if absmax.dtype == torch.float32:
            return absmax
        size: int = state["nested_blocksize"]
        levels = linear.take("weight.nested_quant_map", (256,), dtypes=(torch.float32,))
        upper = linear.take("weight.nested_absmax", (-(-count // size),), dtypes=(torch.float32,))
        nested: Tensor = levels[absmax.int()] * upper.repeat_interleave(size)[:count] + state["nested_offset"]
        return nested

    def ignores(self, name: str, take: Callable[[str], Tensor]) -> bool:
        return name.endswith(".weight_format")


def _codebook(levels: Tensor) -> tuple[float, tuple[int, ...]]:
    """Return the unit, and the levels as int8 in it: the unit with the smallest error among whole ones."""
    units = torch.arange(64, 128, dtype=torch.float64)[:, None]
    rounded = (levels.double() * units).round()
    best = int((rounded / units - levels).square().sum(dim=1).argmin())
    return float(units[best]), tuple(map(int, rounded[best].tolist()))


def parse(fields: Mapping[str, Any]) -> BitsAndBytes:
    """Read the format from quantization_config. Raises ConfigError."""
    if fields.get("load_in_8bit"):
        return BitsAndBytes("int8")
    return BitsAndBytes(one_of(fields, "bnb_4bit_quant_type", ("nf4", "fp4"), "fp4"))
