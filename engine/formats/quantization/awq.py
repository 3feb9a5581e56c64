"""AWQ (Lin et al. 2023) in AutoAWQ's GEMM version: outputs packed side by side, in an order of their own.

qweight [K, N · bits / 32] and qzeros [G, N · bits / 32] int32, scales [G, N]: w = scale · (q - zero).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight
from ...errors import ConfigError
from ..checkpoint_format import LinearTensors
from .affine import SCALE_DTYPES, affine, group_size, in_groups, num_groups, one_of

# Place of each output among the outputs of its word: 0, 2, 4, … come first, so that a kernel widens two at once.
_PLACES = {4: [0, 4, 1, 5, 2, 6, 3, 7], 8: [0, 2, 1, 3]}


@dataclass(frozen=True)
class AWQ:
    """AWQ weights of the linears that have a qweight; the others are unquantized."""

    bits: int
    group_size: int | None

    @property
    def name(self) -> str:
        return f"AWQ, {self.bits} bits{in_groups(self.group_size)}"

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> QuantizedWeight | None:
        if not linear.has("qweight"):
            return None
        (num_outputs, num_inputs), per_word = shape, 32 // self.bits
        if num_outputs % per_word:
            raise ConfigError(f"{linear.name}: {num_outputs} outputs do not fill words of {per_word}; is it AWQ?")
        groups, num_words = num_groups(num_inputs, self.group_size, name=linear.name), num_outputs // per_word
        values = self._unpack(linear.take("qweight", (num_inputs, num_words), dtypes=(torch.int32,)))
        zeros = self._unpack(linear.take("qzeros", (groups, num_words), dtypes=(torch.int32,)))
        scales = linear.take("scales", (groups, num_outputs), dtypes=SCALE_DTYPES)
        return affine(values, zeros.T, scales, bits=self.bits)

    def ignores(self, name: str, take: Callable[[str], Tensor]) -> bool:
        return False

    def _unpack(self, words: Tensor) -> Tensor:
        """Unpack int32 [R, W] → uint8 [W · 32 / bits, R]."""
        num_rows, num_words = words.shape
        # Transpose before unpacking: 1.5 ns of CPU time per value; in the other order 7.
        parts = words.T.reshape(-1).view(torch.uint8).view(num_words, num_rows, 4).transpose(1, 2).contiguous()
        if self.bits == 4:
            parts = torch.stack((parts & 15, parts >> 4), dim=2).view(num_words, 8, num_rows)
        places = torch.tensor(_PLACES[self.bits], device=words.device)
        return parts.index_select(1, places).view(-1, num_rows)


def parse(fields: Mapping[str, Any]) -> AWQ:
    """Read the format from quantization_config. Raises ConfigError."""
    version = str(fields.get("version") or fields.get("format") or "gemm").lower()
    if version != "gemm" or fields.get("backend") == "llm-awq":
        raise ConfigError(f"AWQ's version {version!r:.100} is not supported; take one of gemm")
    bits = one_of(fields, "w_bit" if "w_bit" in fields else "bits", (4, 8), 4)
    return AWQ(bits, group_size({"group_size": fields.get("q_group_size"), **fields}, 128))
