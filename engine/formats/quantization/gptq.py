"""GPTQ (Frantar et al. 2022) in the format of AutoGPTQ and GPTQModel: inputs packed one above the other.

qweight [K · bits / 32, N] and qzeros [G, N · bits / 32] int32, scales [G, N], g_idx [K] int32 with each input's group:
w = scale[g] · (q - zero[g]). checkpoint_format "gptq" stores zeros less 1, "gptq_v2" the zeros.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight
from ...errors import ConfigError
from ..checkpoint_format import LinearTensors
from .affine import SCALE_DTYPES, act_order, affine, group_size, in_groups, num_groups, one_of, unpack

# 1 in every place of a word. GPTQModel subtracts and adds whole words, so a zero of 0 borrows from the next place.
_ONES = {4: 0x11111111, 8: 0x01010101}


@dataclass(frozen=True)
class GPTQ:
    """GPTQ weights of the linears that have a qweight; the others are unquantized."""

    bits: int
    group_size: int | None
    is_v1: bool
    is_act_order: bool = False

    @property
    def name(self) -> str:
        return f"GPTQ, {self.bits} bits{in_groups(self.group_size)}{', act-order' * self.is_act_order}"

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> QuantizedWeight | None:
        if not linear.has("qweight"):
            return None
        (num_outputs, num_inputs), per_word = shape, 32 // self.bits
        if num_outputs % per_word or num_inputs % per_word:
            raise ConfigError(f"{linear.name}: shape {list(shape)} does not fill words of {per_word}; is it GPTQ?")
        groups = num_groups(num_inputs, self.group_size, name=linear.name)
        words = linear.take("qweight", (num_inputs // per_word, num_outputs), dtypes=(torch.int32,))
        zeros = linear.take("qzeros", (groups, num_outputs // per_word), dtypes=(torch.int32,))
        scales = linear.take("scales", (groups, num_outputs), dtypes=SCALE_DTYPES)
        order = None
        if self.is_act_order or linear.has("g_idx"):
            g_idx = linear.take("g_idx", (num_inputs,), dtypes=(torch.int32, torch.int64))
            order = act_order(g_idx, groups, name=linear.name)
        values = unpack(words.T, self.bits)
        return affine(
            values if order is None else values.index_select(1, order),
            unpack(zeros + _ONES[self.bits] if self.is_v1 else zeros, self.bits),
            scales,
            bits=self.bits,
            order=order,
        )

    def ignores(self, name: str, take: Callable[[str], Tensor]) -> bool:
        # AutoGPTQ wrote a bias for every linear, of zeros if the model has none.
        return name.endswith(".bias") and not take(name).any()


def parse(fields: Mapping[str, Any]) -> GPTQ:
    """Read the format from quantization_config. Raises ConfigError."""
    layout = one_of(fields, "checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    if fields.get("is_marlin_format"):
        raise ConfigError("weights in Marlin's layout are not supported; take one in GPTQ's own")
    # Keys are patterns of names. "-:" begins the pattern of unquantized linears, which have no qweight.
    if any(not str(pattern).startswith("-:") for pattern in fields.get("dynamic") or ()):
        raise ConfigError("dynamic bits and groups are not supported; take one of equal bits")
    return GPTQ(one_of(fields, "bits", (4, 8)), group_size(fields, -1), layout == "gptq", bool(fields.get("desc_act")))
