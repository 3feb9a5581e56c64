"""Table of the cosines and sines of every position, computed once."""

import logging
import math

import torch
from torch import Tensor

from .rope_config import RopeConfig

_log = logging.getLogger("splitfuse.engine")
_PIECE = 2**16  # positions


def rope_table(rope: RopeConfig, *, num_positions: int, device: torch.device) -> Tensor:
    """Return the cosines (left) and sines (right) of every position, [num_positions, rotary_dim] float32.

    Su et al. 2021 (RoFormer). Scalings: "linear" (Chen et al. 2023), "llama3" (Dubey et al. 2024), "yarn" (Peng et al.
    2023), "longrope" (Ding et al. 2024; `num_positions` chooses the short or the long factors).
    """
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.int64).float() / max(rope.rotary_dim, 1)
    wavelengths = rope.theta**exponents  # over 2 pi
    kind = rope.scaling.get("rope_type")
    if kind in ("linear", "proportional"):
        frequencies = 1.0 / wavelengths / rope.scaling["factor"]
        frequencies[rope.scaling.get("num_pairs", len(frequencies)) :] = 0.0  # pairs that do not turn
    elif kind == "llama3":
        frequencies = _llama3(1.0 / wavelengths, rope)
    elif kind == "yarn":
        frequencies = _yarn(wavelengths, rope)
    elif kind == "longrope":
        frequencies = _longrope(wavelengths, rope, num_positions)
    else:
        frequencies = 1.0 / wavelengths
    factor = float(rope.scaling.get("attention_factor", 1.0))
    table = torch.empty((num_positions, 2 * len(frequencies)), dtype=torch.float32, device=device)
    # In pieces: at once, the parts of millions of positions would take 1.5 times the table beside it.
    for begin in range(0, num_positions, _PIECE):
        positions = torch.arange(begin, min(begin + _PIECE, num_positions), dtype=torch.int64)
        angles = positions.float()[:, None] * frequencies
        table[begin : begin + _PIECE] = torch.cat((angles.cos(), angles.sin()), dim=-1) * factor
    return table


def _llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Slow the long waves down by `factor`, keep the short ones, and blend in between."""
    scaling = rope.scaling
    factor, low, high = (scaling[key] for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = scaling["original_max_position_embeddings"] / (2 * math.pi / frequencies)
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    # Sums and products in transformers' order: at position 40,000 a different rounding moves the angle by 1e-3.
    blended: Tensor = (1.0 - blend) * frequencies / factor + blend * frequencies
    return blended


def _yarn(wavelengths: Tensor, rope: RopeConfig) -> Tensor:
    """Slow the waves with fewer than beta_slow turns over the original length down by `factor`, keep those with more
    than beta_fast turns, and blend by index in between."""
    scaling, dim = rope.scaling, rope.rotary_dim
    original = scaling["original_max_position_embeddings"]

    def index_of(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = index_of(scaling["beta_fast"]), index_of(scaling["beta_slow"])
    if scaling["truncate"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    slowed = (torch.arange(dim // 2, dtype=torch.float32) - first) / (last - first or 0.001)
    kept = 1.0 - slowed.clamp(0.0, 1.0)
    # Sums in transformers' order, as in _llama3: 1 - kept is not `slowed` to the bit.
    frequencies: Tensor = 1.0 / (scaling["factor"] * wavelengths) * (1.0 - kept) + 1.0 / wavelengths * kept
    return frequencies


def _longrope(wavelengths: Tensor, rope: RopeConfig, num_positions: int) -> Tensor:
    """Divide by the short or the long factors, chosen once: cached keys are rotated with them, so a sequence that
    outgrew the original length would have to recompute all of its keys."""
    is_long = num_positions > rope.scaling["original_max_position_embeddings"]
    name = "long_factor" if is_long else "short_factor"
    _log.info(
        "longrope: %s for every request, since max_model_len is %d and the original length %d",
        name,
        num_positions,
        rope.scaling["original_max_position_embeddings"],
    )
    frequencies: Tensor = 1.0 / (torch.tensor(rope.scaling[name], dtype=torch.float32) * wavelengths)
    return frequencies
