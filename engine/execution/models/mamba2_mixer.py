"""Mamba2Mixer: a selective state space between two projections (Dao & Gu 2024), and the decoders that load one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int
from .forward_inputs import Inputs
from .hybrid import HybridDecoder
from .layer_states import RecurrentState


@dataclass(frozen=True, kw_only=True)
class MambaShape:
    """Heads of a state space: each has a state [head_dim, state_size]; groups of heads share their inputs B and C."""

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    conv_width: int
    has_conv_bias: bool
    has_bias: bool  # True if the projections have one
    has_norm: bool
    norm_before_gate: bool
    dt_limits: tuple[float, float]

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "MambaShape":
        """Read the fields under Bamba's keys. Raises ConfigError."""
        num_heads, head_dim = positive_int(fields, "mamba_n_heads"), fields.get("mamba_d_head") or "auto"
        inner = fields.get("mamba_d_ssm") or positive_int(fields, "mamba_expand", 2) * fields["hidden_size"]
        if head_dim == "auto":
            head_dim = inner // num_heads
        shape = cls(
            num_heads=num_heads,
            head_dim=positive_int({"mamba_d_head": head_dim}, "mamba_d_head"),
            num_groups=positive_int(fields, "mamba_n_groups", 1),
            state_size=positive_int(fields, "mamba_d_state"),
            conv_width=positive_int(fields, "mamba_d_conv", 4),
            has_conv_bias=bool(fields.get("mamba_conv_bias", True)),
            has_bias=bool(fields.get("mamba_proj_bias", False)),
            has_norm=bool(fields.get("mamba_rms_norm", True)),
            norm_before_gate=bool(fields.get("mamba_norm_before_gate", False)),
            dt_limits=_limits(fields.get("time_step_limit")),
        )
        if shape.inner_size != inner:
            raise ConfigError(f"mamba_n_heads {num_heads} times mamba_d_head {head_dim} must be {inner}")
        if num_heads % shape.num_groups:
            raise ConfigError(f"mamba_n_heads {num_heads} is not a multiple of mamba_n_groups {shape.num_groups}")
        return shape

    @property
    def inner_size(self) -> int:
        """Width of all heads."""
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Width of all heads with B and C, which the convolution takes."""
        return self.inner_size + 2 * self.num_groups * self.state_size


def _limits(limits: Any) -> tuple[float, float]:
    """Return the limits of a time step. transformers writes an infinite one as {"__float__": "Infinity"}."""
    if limits is None:
        return 0.0, math.inf
    low, high = (float(limit["__float__"] if isinstance(limit, dict) else limit) for limit in limits)
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2Mixer:
    """State space whose input projection stacks gate, x, B, C and time steps."""

    shape: MambaShape
    in_proj: Any
    conv_weight: Tensor  # [width, conv_channels] float32
    conv_bias: Tensor | None  # [conv_channels] float32
    a_log: Tensor  # [num_heads] float32
    d: Tensor  # [num_heads] float32
    dt_bias: Tensor  # [num_heads] float32
    norm_weight: Tensor | None  # [inner_size]; None: the gate alone
    eps: float
    out_proj: Any

    def __call__(self, x: Tensor, inputs: Inputs, view: ops.StateView) -> Tensor:
        shape = self.shape
        sizes = [shape.inner_size, shape.conv_channels, shape.num_heads]
        gate, xbc, dt = ops.linear(x, self.in_proj).split_with_sizes(sizes, dim=1)
        assert inputs.states is not None
        out = ops.mamba2(
            xbc, dt, self.conv_weight, self.conv_bias, self.a_log, self.d, self.dt_bias, view, inputs.ragged,
            inputs.states, head_dim=shape.head_dim, num_groups=shape.num_groups, state_size=shape.state_size,
            dt_limits=shape.dt_limits,
        ).flatten(1)  # fmt: skip
        if self.norm_weight is None:
            return ops.linear(ops.gate_mul(out, gate, "silu"), self.out_proj)
        out = ops.gated_rms_norm(
            out,
            gate,
            self.norm_weight,
            eps=self.eps,
            group_size=shape.inner_size // shape.num_groups,
            norm_before_gate=shape.norm_before_gate,
        )
        return ops.linear(out, self.out_proj)


class MambaDecoder(HybridDecoder):
    """HybridDecoder whose recurrent parts are state spaces."""

    mixer: ClassVar[str] = "mamba"  # the state space's name within its layer

    @classmethod
    def recurrent_state(cls, fields: Mapping[str, Any]) -> RecurrentState:
        shape = MambaShape.from_fields(fields)
        heads = (shape.num_heads, shape.state_size, shape.head_dim)
        return RecurrentState(shape.conv_channels, shape.conv_width, heads, num_gates=shape.num_heads)

    def _load_recurrent(self, index: int) -> Mamba2Mixer:
        hidden, shape = self.config.hidden_size, MambaShape.from_fields(self.config.hf_config)
        name = f"{self._layer_name(index)}.{self.mixer}"
        rows = shape.inner_size + shape.conv_channels + shape.num_heads
        return Mamba2Mixer(
            shape=shape,
            in_proj=self._linear([(f"{name}.in_proj", rows)], hidden, bias=shape.has_bias),
            conv_weight=self._take_conv(name, shape.conv_channels, shape.conv_width),
            conv_bias=self._take(f"{name}.conv1d.bias", shape.conv_channels).float() if shape.has_conv_bias else None,
            a_log=self._take(f"{name}.A_log", shape.num_heads).float(),
            d=self._take(f"{name}.D", shape.num_heads).float(),
            dt_bias=self._take(f"{name}.dt_bias", shape.num_heads).float(),
            norm_weight=self._take(f"{name}.norm.weight", shape.inner_size) if shape.has_norm else None,
            eps=self.config.norm_eps,
            out_proj=self._linear([(f"{name}.out_proj", hidden)], shape.inner_size, bias=shape.has_bias),
        )
