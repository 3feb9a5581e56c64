"""Heads: turn a pooled state into an embedding or into logits, in float32 on the host.

One vector at a time in one order of sums: a result depends on its own request alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ....kernels import ops
from ...errors import ConfigError
from .task import Array

Head = Callable[[Array], Array]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "silu": functional.silu,
}


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by its name, or by torch's of its class. Raises ConfigError."""
    short = name.rpartition(".")[2].lower()
    if short not in ACTIVATIONS:
        raise ConfigError(f"activation {name!r} of a pooling head is not known; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[short]


def on_host(weight: Tensor) -> Tensor:
    """Return a head's weight in float32 on the host; `splitfuse plan` has only its shape."""
    return weight.float() if weight.is_meta else weight.float().cpu()


class Dense:
    """activation(x · weightᵀ + bias), with a weight [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, activation: str = "identity") -> None:
        self._activation = activation_of(activation)
        self._packed = ops.pack_linear(on_host(weight), None if bias is None else on_host(bias))

    def __call__(self, vector: Array) -> Array:
        x: Any = torch.from_numpy(np.ascontiguousarray(vector))
        out = self._activation(ops.linear(x.view(-1, x.shape[-1]), self._packed))
        result: Array = out.view(*x.shape[:-1], -1).numpy()
        return result


@dataclass(frozen=True)
class Norm:
    """LayerNorm with a weight [H]."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, vector: Array) -> Array:
        x = torch.from_numpy(np.ascontiguousarray(vector))
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps).numpy()


def chain(heads: "list[Head]") -> Head:
    """Return the heads one after the other."""

    def apply(vector: Array) -> Array:
        for head in heads:
            vector = head(vector)
        return vector

    return apply


def normalized(vector: Array) -> Array:
    """Return the vector, or each row, with length 1; zeros stay zeros."""
    length = np.sqrt((vector.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))
    return _as_float32(vector / np.maximum(length, 1e-12))


def softmax(logits: Array) -> Array:
    """Return the probabilities of logits [labels]."""
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return _as_float32(powers / powers.sum())


def sigmoid(logits: Array) -> Array:
    """Return 1 / (1 + e^-x) of each logit."""
    return _as_float32(1.0 / (1.0 + np.exp(-logits.astype(np.float64))))


def _as_float32(values: "np.ndarray[Any, Any]") -> Array:
    return values.astype(np.float32)
