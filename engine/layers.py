"""The parts a decoder is made of, as plain functions and tensors over the kernels. No model names here."""

import math

import torch
from torch import Tensor

from .config import RopeConfig


def rope_table(rope: RopeConfig, *, head_dim: int, num_positions: int, device: torch.device) -> Tensor:
    """Cosines and sines of every position, [num_positions, head_dim] float32: cosines left, sines right.

    Su et al. 2021 (RoFormer); scalings "linear" (Chen et al. 2023) and "llama3" (Dubey et al. 2024).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    kind = rope.scaling.get("rope_type")
    if kind == "linear":
        frequencies = frequencies / rope.scaling["factor"]
    elif kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    angles = torch.arange(num_positions, dtype=torch.int64).float()[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Slow the long waves down by `factor`, leave the short ones, blend between."""
    scaling = rope.scaling
    factor, low, high = (float(scaling[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = frequencies * (float(scaling["original_max_position_embeddings"]) / (2 * math.pi))
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * blend + frequencies / factor * (1.0 - blend)
