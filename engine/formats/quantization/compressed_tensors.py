"""compressed-tensors, llm-compressor's format: groups of linears, where a group has its own scheme.

Packed weights of 4 or 8 bits: weight_packed int32 [N, ⌈K · bits / 32⌉], weight_scale, weight_zero_point packed over the
outputs if the scheme is not symmetric, weight_shape, perhaps weight_g_idx. Other weights are int8 or float8_e4m3fn,
with weight_scale. Four bits of e2m1 are weight_packed uint8 [N, K / 2] with float8 scales in parts of
weight_global_scale (NVFP4), or with exponents, uint8 [N, K / 32] (MXFP4); MXFP8 is float8_e4m3fn with such exponents.

Activations that the format rounds to int8 per token, with a scale from the token itself, are marked for products in
int8 (`rounds_inputs`); all other activations are not rounded, which loses less.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import E2M1, QuantizedWeight
from ...errors import ConfigError
from ..checkpoint_format import LinearTensors
from .affine import act_order, affine, group_size, in_groups, num_groups, one_of, unpack
from .fp8 import block_of, float_weight, take_scales
from .modelopt import float4_weight
from .targets import Targets, targets

_FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized",
)  # fmt: skip
_IGNORED = (
    ".input_scale",
    ".input_global_scale",
    ".input_zero_point",
    ".output_scale",
    ".q_scale",
    ".k_scale",
    ".v_scale",
)


@dataclass(frozen=True)
class Scheme:
    """Quantization scheme of some linears' weights."""

    targets: Targets
    bits: int
    is_float: bool
    is_symmetric: bool
    block: tuple[int | None, int | None]  # rows and columns that share a scale; None: all
    rounds_inputs: bool

    @property
    def name(self) -> str:
        kind = f"{'FP' if self.is_float else 'int'}{self.bits}"
        rows, columns = self.block
        if rows not in (None, 1):
            return f"{kind} in blocks of {rows} x {columns}"
        return f"{kind}{in_groups(columns)}{', int8 inputs' * self.rounds_inputs}"

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> QuantizedWeight:
        block = self.block[0] or shape[0], self.block[1] or shape[1]
        if self.is_float and self.bits == 4:
            return self._float4(linear, shape, block)
        if self.is_float:
            return float_weight(linear, "weight_scale", shape, block)
        scales = take_scales(linear, "weight_scale", shape, block)
        if linear.has("weight_packed"):
            result = self._packed(linear, shape, scales)
        else:
            result = self._plain(linear, shape, scales, block)
        return result._replace(rounds_inputs=self.rounds_inputs)

    def _float4(self, linear: LinearTensors, shape: tuple[int, int], block: tuple[int, int]) -> QuantizedWeight:
        if linear.has("weight_global_scale"):
            unit = 1 / linear.take("weight_global_scale", (1,), (), dtypes=(torch.float32,))
            return float4_weight(linear, "weight_packed", shape, unit)
        packed = linear.take("weight_packed", (shape[0], shape[1] // 2), dtypes=(torch.uint8,))
        scales = take_scales(linear, "weight_scale", shape, block, dtypes=(torch.uint8,)) / 2
        return QuantizedWeight(unpack(packed, 4), scales, None, 4, codebook=E2M1)

    def _plain(
        self, linear: LinearTensors, shape: tuple[int, int], scales: Tensor, block: tuple[int, int]
    ) -> QuantizedWeight:
        if self.bits != 8:
            raise ConfigError(f"{linear.name}: int{self.bits} that is not packed is not supported")
        values, offsets = linear.take("weight", shape, dtypes=(torch.int8,)), None
        if not self.is_symmetric:
            offsets = -scales.float() * take_scales(linear, "weight_zero_point", shape, block, dtypes=(torch.int8,))
        return QuantizedWeight(values, scales, offsets, 8)

    def _packed(self, linear: LinearTensors, shape: tuple[int, int], scales: Tensor) -> QuantizedWeight:
        (num_outputs, num_inputs), groups = shape, num_groups(shape[1], self.block[1], name=linear.name)
        words = linear.take("weight_packed", (num_outputs, self._num_words(num_inputs)), dtypes=(torch.int32,))
        if linear.has("weight_shape"):
            stated_shape = linear.take("weight_shape", (2,), dtypes=(torch.int32, torch.int64)).tolist()
            if stated_shape != list(shape):
                raise ConfigError(f"{linear.name}.weight_shape is {stated_shape}, but config.json needs {list(shape)}")
        zeros = order = None
        if not self.is_symmetric:
            packed = (self._num_words(num_outputs), groups)
            zeros = linear.take("weight_zero_point", packed, dtypes=(torch.int32,))
            zeros = unpack(zeros.T, self.bits)[:, :num_outputs]
        if linear.has("weight_g_idx"):
            g_idx = linear.take("weight_g_idx", (num_inputs,), dtypes=(torch.int32, torch.int64))
            order = act_order(g_idx, groups, name=linear.name)
        values = unpack(words, self.bits)[:, :num_inputs]
        values = values.contiguous() if order is None else values.index_select(1, order)
        return affine(values, zeros, scales, bits=self.bits, order=order)

    def _num_words(self, count: int) -> int:
        return -(-count * self.bits // 32)


@dataclass(frozen=True)
class CompressedTensors:
    """Format of a checkpoint: schemes, and the linears that are not quantized."""

    schemes: tuple[Scheme, ...]
    ignored: Targets

    @property
    def name(self) -> str:
        return f"compressed-tensors, {' and '.join(dict.fromkeys(scheme.name for scheme in self.schemes))}"

    def weight(self, linear: LinearTensors, shape: tuple[int, int]) -> QuantizedWeight | None:
        if not linear.has("weight_packed") and not linear.has("weight_scale"):
            return None
        scheme = max(self.schemes, key=lambda scheme: scheme.targets.rank(linear.name))
        if not scheme.targets.rank(linear.name) or self.ignored.rank(linear.name):
            raise ConfigError(f"{linear.name} is quantized, but not by quantization_config; fetch config.json again")
        return scheme.weight(linear, shape)

    def ignores(self, name: str, take: Callable[[str], Tensor]) -> bool:
        return name.endswith(_IGNORED)


def parse(fields: Mapping[str, Any]) -> CompressedTensors:
    """Read the format from quantization_config. Raises ConfigError."""
    one_of(fields, "format", _FORMATS, "mixed-precision")
    sparsity = fields.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise ConfigError("sparse weights are not supported; take the dense checkpoint")
    if fields.get("transform_config"):
        raise ConfigError("transform_config is not supported; take a checkpoint without transforms")
    groups = fields.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise ConfigError("config_groups must be an object of objects; fetch config.json again")
    schemes = tuple(_scheme(group) for group in groups.values() if group.get("weights"))
    if not schemes:
        raise ConfigError("no config_groups with weights; take the unquantized checkpoint")
    return CompressedTensors(schemes, targets(fields.get("ignore"), where="ignore"))


def _scheme(group: Mapping[str, Any]) -> Scheme:
    weights = group["weights"]
    if not isinstance(weights, dict):
        raise ConfigError(f"weights must be an object, not {weights!r:.100}")
    one_of(group, "format", _FORMATS, "mixed-precision")
    is_float = one_of(weights, "type", ("int", "float"), "int") == "float"
    bits = one_of(weights, "num_bits", (4, 8), 8)
    is_symmetric = one_of(weights, "symmetric", (True,) if is_float else (True, False), True)
    block = _block(weights)
    return Scheme(
        targets(group.get("targets"), where="targets"),
        bits,
        is_float,
        is_symmetric,
        block,
        not is_float and bits == 8 and is_symmetric and block[1] is None and _rounds_tokens(group),
    )


def _block(weights: Mapping[str, Any]) -> tuple[int | None, int | None]:
    size = group_size(weights, -1)
    strategy = one_of(
        weights, "strategy", ("tensor", "channel", "group", "tensor_group", "block"),
        _default_strategy(weights.get("group_size")),
    )  # fmt: skip
    strategy = "group" if strategy == "tensor_group" else strategy
    if strategy == "block":
        return block_of(weights.get("block_structure"))
    if strategy == "group" and size is None:
        raise ConfigError("the strategy group needs a positive group_size")
    return (None if strategy == "tensor" else 1), (size if strategy == "group" else None)


def _default_strategy(size: object) -> str:
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _rounds_tokens(group: Mapping[str, Any]) -> bool:
    """True if inputs are rounded to int8 with a scale per token."""
    inputs = group.get("input_activations") or {}
    wanted = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    fields = {"type": "int", "symmetric": True, **inputs} if isinstance(inputs, dict) else {}
    return all(fields.get(name) == value for name, value in wanted.items())
