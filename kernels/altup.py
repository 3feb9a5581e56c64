"""Reference ops of Gemma 3n (Gemma Team 2025): alternating updates of several streams, and sparse activations."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def sparse_gelu_mul(gate_up: Tensor, *, num_deviations: float) -> Tensor:
    gate, up = _wide(gate_up).chunk(2, dim=-1)
    deviation = gate.std(dim=-1, keepdim=True, unbiased=False)
    kept = F.relu(gate - (gate.mean(dim=-1, keepdim=True) + deviation * num_deviations))
    return (F.gelu(kept, approximate="tanh") * up).to(gate_up.dtype)


def match_rms(x: Tensor, like: Tensor) -> Tensor:
    wide = _wide(x)
    scale = _mean_square(_wide(like)).sqrt() / _mean_square(wide).clamp(min=1e-5).sqrt()
    return (wide * scale).to(x.dtype)


def altup_predict(streams: Sequence[Tensor], added: Tensor | None, coefs: Tensor) -> list[Tensor]:
    wide = [_wide(stream) for stream in streams]
    if added is not None:
        wide[1:] = [stream + _wide(added) for stream in wide[1:]]
    mixes = _wide(coefs).view(len(coefs), len(wide), len(wide), 1).unbind(1)
    sums = [sum(mix[:, a] * stream for a, stream in enumerate(wide)) for mix in mixes]
    return [(stream + mixed).to(coefs.dtype) for stream, mixed in zip(wide, sums, strict=True)]


def altup_correct(predictions: Sequence[Tensor], activated: Tensor, coefs: Tensor) -> list[Tensor]:
    news, factors = _wide(activated) - _wide(predictions[0]), _wide(coefs) + 1.0
    return [(_wide(stream) + news * factors[:, b : b + 1]).to(coefs.dtype) for b, stream in enumerate(predictions)]


def _mean_square(x: Tensor) -> Tensor:
    return x.square().mean(dim=-1, keepdim=True)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
