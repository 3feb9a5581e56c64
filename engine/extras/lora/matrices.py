"""Matrices: an adapter's files as pairs of matrices by the name of the linear that each changes. Knows no model."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...errors import ConfigError


@dataclass(frozen=True, slots=True)
class Pair:
    """y += scale · B (A x), with A [r, in] and B [out, r]."""

    a: Tensor
    b: Tensor
    scale: float
    interleaves: bool = False  # the two halves of each head's rows of B are interleaved, as in llama.cpp's files


@dataclass(frozen=True, slots=True)
class Matrices:
    """Pairs by checkpoint name (`model.layers.0.self_attn.q_proj`), and the hash of the files."""

    pairs: Mapping[str, Pair]
    digest: str


def paired(
    path: Path,
    halves: Mapping[str, Mapping[str, Tensor]],
    scales: Mapping[str, float],
    *,
    interleaved: Collection[str] = (),
) -> dict[str, Pair]:
    """Join the halves "a" and "b" of each linear. Raises ConfigError if they do not belong together."""
    if not halves:
        raise ConfigError(f"{path}: the adapter has no matrices")
    pairs = {}
    for name, own in halves.items():
        if own.keys() != {"a", "b"}:
            raise ConfigError(f"{path}: the adapter has one matrix for {name}, and two belong together")
        a, b = own["a"], own["b"]
        if a.ndim != 2 or b.ndim != 2 or len(a) != b.shape[1] or not len(a):
            raise ConfigError(f"{path}: the matrices {list(a.shape)} and {list(b.shape)} for {name} have no rank")
        if not all(torch.isfinite(matrix).all() for matrix in (a, b)):
            raise ConfigError(f"{path}: a matrix for {name} is not finite")
        pairs[name] = Pair(a, b, scales[name], name in interleaved)
    return pairs
