"""MXFP4 experts, the format of gpt-oss: e2m1 values in groups of 32 with an e8m0 scale (OCP Microscaling Formats 1.0).

EXPERTS.gate_up_proj_blocks [E, 2·I, H / 32, 16] uint8, gate and up interleaved, the lower half of a byte first, and
_scales [E, 2·I, H / 32] uint8; EXPERTS.down_proj_blocks and _scales alike. The other weights are not quantized.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import E2M1, QuantizedWeight, powers_of_two
from ...errors import ConfigError
from ..checkpoint_format import LinearTensors

_GROUP = 32
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj")


@dataclass(frozen=True)
class MXFP4:
    """MXFP4 in the layers' experts. The tensors of the layers that are being read are kept meanwhile."""

    name: str = "MXFP4"
    _stacks: dict[str, Tensor] = field(default_factory=dict)

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> QuantizedWeight | None:
        """Return the matrix of an expert, EXPERTS.3.gate_proj, of the tensor that all experts share."""
        match = _EXPERT.fullmatch(linear.name)
        if match is None:
            return None
        experts, number, half = match.groups()
        stem = f"{experts}.{'down' if half == 'down' else 'gate_up'}_proj"
        if not linear.has_tensor(f"{stem}_blocks"):
            return None
        num_rows, num_inputs = shape
        rows = slice(None) if half == "down" else slice(half == "up", None, 2)
        stacked = num_rows if half == "down" else 2 * num_rows
        blocks = self._stack(linear, f"{stem}_blocks", (stacked, num_inputs // _GROUP, _GROUP // 2))[int(number)][rows]
        scales = self._stack(linear, f"{stem}_scales", (stacked, num_inputs // _GROUP))[int(number)][rows]
        if half != "gate" and int(number) == self._num_experts(stem) - 1:
            del self._stacks[f"{stem}_blocks"], self._stacks[f"{stem}_scales"]
        codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).view(num_rows, num_inputs)
        return QuantizedWeight(codes, powers_of_two(scales).T / 2, None, 4, codebook=E2M1)

    def _num_experts(self, stem: str) -> int:
        return len(self._stacks[f"{stem}_blocks"])

    def _stack(self, linear: LinearTensors, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._stacks:
            self._stacks[name] = linear.take_tensor(name)
        stack = self._stacks[name]
        if tuple(stack.shape[1:]) != shape or stack.dtype != torch.uint8:
            raise ConfigError(
                f"{name} is {stack.dtype} {list(stack.shape)}, but config.json needs uint8 [experts, "
                f"{', '.join(map(str, shape))}]; the files do not belong together"
            )
        return stack

    def ignores(self, name: str, take: Callable[[str], Tensor]) -> bool:
        return False


def parse(fields: Mapping[str, Any]) -> MXFP4:
    """Read the format from quantization_config."""
    return MXFP4()
