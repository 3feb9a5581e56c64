"""The parts a decoder is made of: weights together with the ops on them. No model names here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from .forward_inputs import Inputs
from .tensor_parallel import TensorParallel

Activation = Callable[[Tensor], Tensor]


class Norm(Protocol):
    """A normalisation of [T, H], alone or after the addition to the residual stream."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual); a residual of None adds nothing. `residual` may be overwritten."""


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Weight [H] in the model's dtype, or in float32 where it must not be rounded."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, eps=self.eps)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            return self(x), x
        return ops.add_rms_norm(x, residual, self.weight, eps=self.eps)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Weight and bias [H]."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, eps=self.eps)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            return self(x), x
        return ops.add_layer_norm(x, residual, self.weight, self.bias, eps=self.eps)


class NoNorm:
    """Where others have a norm."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        total = x if residual is None else x + residual
        return total, total


@dataclass(frozen=True, slots=True)
class Normed:
    """A part whose output is normalised before it goes on."""

    part: Callable[..., Tensor]
    norm: Norm

    def __call__(self, x: Tensor, *more: Any) -> Tensor:
        return self.norm(self.part(x, *more))


@dataclass(frozen=True, slots=True)
class Scaled:
    """A part whose output is multiplied by a number before it goes on."""

    part: Callable[..., Tensor]
    factor: float

    def __call__(self, x: Tensor, *more: Any) -> Tensor:
        return self.part(x, *more).mul_(self.factor)


@dataclass(frozen=True, slots=True)
class AllHeadsNorm:
    """All heads of a token normalised together, [T, heads, D]."""

    norm: Norm  # of heads · D elements

    def __call__(self, heads: Tensor) -> Tensor:
        return self.norm(heads.flatten(1)).view_as(heads)


@dataclass(frozen=True, slots=True)
class SpreadHeadsNorm:
    """AllHeadsNorm where each rank has some of the heads."""

    norm: AllHeadsNorm
    parallel: TensorParallel
    num_heads: int  # over all ranks
    own: slice

    def __call__(self, heads: Tensor) -> Tensor:
        return self.norm(self.parallel.gather_heads(heads, num_heads=self.num_heads))[:, self.own]


@dataclass(frozen=True, slots=True)
class EachHeadNorm:
    """LayerNorm of each head [T, heads, D] with a weight of its own, [heads, D] float32."""

    weight: Tensor
    ones: Tensor  # [D] float32
    eps: float

    def __call__(self, heads: Tensor) -> Tensor:
        normed = ops.layer_norm(heads.float().flatten(0, 1), self.ones, None, eps=self.eps)
        return (normed.view_as(heads) * self.weight).to(heads.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Projections, rotation and cache write, paged attention."""

    qkv_proj: Any
    o_proj: Any
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: ops.RopeArgs  # its table is of `rope_table`; layers that rotate alike share it
    args: ops.AttentionArgs
    # Of q and of k, before the rotation, where the norm of RopeArgs (one weight for each head alike) will not do.
    qk_norms: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None = None

    def __call__(self, x: Tensor, inputs: Inputs, cache: ops.CacheView) -> Tensor:
        heads = ops.linear(x, self.qkv_proj).view(len(x), -1, self.head_dim)
        q, k, v = heads.split_with_sizes([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
        if self.qk_norms is not None:
            q, k = self.qk_norms[0](q), self.qk_norms[1](k)
        q = ops.rope_and_cache(q, k, v, inputs.positions, inputs.slot_mapping, self.rope, cache)
        out = ops.paged_attention(q, cache, inputs.ragged, self.args)
        return ops.linear(out.reshape(len(x), -1), self.o_proj)


@dataclass(frozen=True, slots=True)
class MLP:
    """down(activation(up(x))); a gated activation takes gate and up side by side."""

    up_proj: Any
    activation: Activation
    down_proj: Any

    def __call__(self, x: Tensor) -> Tensor:
        if self.activation is ops.silu_mul:
            return ops.linear(ops.linear_silu_mul(x, self.up_proj), self.down_proj)
        return ops.linear(self.activation(ops.linear(x, self.up_proj)), self.down_proj)


# By the names of config.json.
GATED_ACTIVATIONS: dict[str, Activation] = {
    "silu": ops.silu_mul,
    "swish": ops.silu_mul,
    "gelu_new": ops.gelu_tanh_mul,
    "gelu_pytorch_tanh": ops.gelu_tanh_mul,
}
ACTIVATIONS: dict[str, Activation] = {
    "gelu": ops.gelu,
    "gelu_fast": ops.gelu_tanh,
    "gelu_new": ops.gelu_tanh,
    "gelu_pytorch_tanh": ops.gelu_tanh,
    "relu": ops.relu,
}


def activation(name: str, known: dict[str, Activation]) -> Activation:
    """The function called `name`. Raises ConfigError that lists what is known."""
    if name not in known:
        raise ConfigError(f"activation {name!r} is not known here; known: {', '.join(sorted(known))}")
    return known[name]
