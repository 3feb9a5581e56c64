"""Parts of a decoder: weights together with the ops on them. Knows no model names."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from .forward_inputs import Inputs
from .tensor_parallel import TensorParallel

Activation = Callable[[Tensor], Tensor]


class Norm(Protocol):
    """Normalisation of [T, H], alone or after an addition to the residual stream."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return (norm(x + residual), x + residual); None adds nothing. `residual` may be overwritten."""


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """RMSNorm with a weight [H] in the model's dtype, or in float32 if rounding would change it."""

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
    """LayerNorm with weight and bias [H]."""

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
    """Norm that changes nothing, for families that leave a norm out."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        total = x if residual is None else x + residual
        return total, total


@dataclass(frozen=True, slots=True)
class Normed:
    """Part of a layer whose output is normalised."""

    part: Callable[..., Tensor]
    norm: Norm

    def __call__(self, x: Tensor, *more: Any) -> Tensor:
        return self.norm(self.part(x, *more))


@dataclass(frozen=True, slots=True)
class Scaled:
    """Part of a layer whose output is multiplied by a number."""

    part: Callable[..., Tensor]
    factor: float

    def __call__(self, x: Tensor, *more: Any) -> Tensor:
        return self.part(x, *more).mul_(self.factor)


@dataclass(frozen=True, slots=True)
class AllHeadsNorm:
    """Norm of all heads of a token together, [T, heads, D]."""

    norm: Norm  # over heads · D elements

    def __call__(self, heads: Tensor) -> Tensor:
        return self.norm(heads.flatten(1)).view_as(heads)


@dataclass(frozen=True, slots=True)
class SpreadHeadsNorm:
    """AllHeadsNorm of heads that are spread over the ranks."""

    norm: AllHeadsNorm
    parallel: TensorParallel
    num_heads: int  # over all ranks
    own: slice  # this rank's heads

    def __call__(self, heads: Tensor) -> Tensor:
        return self.norm(self.parallel.gather_heads(heads, num_heads=self.num_heads))[:, self.own]


@dataclass(frozen=True, slots=True)
class EachHeadNorm:
    """LayerNorm of each head [T, heads, D] with the head's own weight; all weights are [heads, D] float32."""

    weight: Tensor
    ones: Tensor  # [D] float32
    eps: float

    def __call__(self, heads: Tensor) -> Tensor:
        normed = ops.layer_norm(heads.float().flatten(0, 1), self.ones, None, eps=self.eps)
        return (normed.view_as(heads) * self.weight).to(heads.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Attention: projections, rotation and cache write, paged attention."""

    qkv_proj: Any
    o_proj: Any
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: ops.RopeArgs  # with a table of `rope_table`; layers that rotate alike share the table
    args: ops.AttentionArgs
    # Norms of q and k before the rotation, for models that need more than RopeArgs' norm (one weight for all heads).
    qk_norms: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None = None
    # Change of q and k by their tokens' positions before the rotation; the native plan does not know it.
    by_position: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None

    def __call__(self, x: Tensor, inputs: Inputs, cache: ops.CacheView) -> Tensor:
        return ops.linear(self.attend(x, inputs, cache), self.o_proj)

    def attend(self, x: Tensor, inputs: Inputs, cache: ops.CacheView) -> Tensor:
        """Return the outputs of all heads side by side, [T, num_heads · head_dim]."""
        heads = ops.linear(x, self.qkv_proj).view(len(x), -1, self.head_dim)
        q, k, v = heads.split_with_sizes([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
        if self.qk_norms is not None:
            q, k = self.qk_norms[0](q), self.qk_norms[1](k)
        if self.by_position is not None:
            q, k = self.by_position(q, k, inputs.positions)
        q = ops.rope_and_cache(q, k, v, inputs.positions, inputs.slot_mapping, self.rope, cache)
        return ops.paged_attention(q, cache, inputs.ragged, self.args).reshape(len(x), -1)


@dataclass(frozen=True, slots=True)
class MLP:
    """MLP: down(activation(up(x))). A gated activation takes gate and up side by side."""

    up_proj: Any
    activation: Activation
    down_proj: Any

    def __call__(self, x: Tensor) -> Tensor:
        if self.activation is ops.silu_mul:
            return ops.linear(ops.linear_silu_mul(x, self.up_proj), self.down_proj)
        return ops.linear(self.activation(ops.linear(x, self.up_proj)), self.down_proj)


# Keys are the names in config.json.
GATED_ACTIVATIONS: dict[str, Activation] = {
    "silu": ops.silu_mul,
    "swish": ops.silu_mul,
    "gelu_new": ops.gelu_tanh_mul,
    "gelu_pytorch_tanh": ops.gelu_tanh_mul,
}
ACTIVATIONS: dict[str, Activation] = {
    "gelu": partial(ops.activation, kind="gelu"),
    **dict.fromkeys(("gelu_fast", "gelu_new", "gelu_pytorch_tanh"), partial(ops.activation, kind="gelu_tanh")),
    "relu": partial(ops.activation, kind="relu"),
    "relu2": partial(ops.activation, kind="relu_squared"),
}


def activation(name: str, known: dict[str, Activation]) -> Activation:
    """Return the activation called `name`. Raises ConfigError that lists the known names."""
    if name not in known:
        raise ConfigError(f"activation {name!r} is not known here; known: {', '.join(sorted(known))}")
    return known[name]
