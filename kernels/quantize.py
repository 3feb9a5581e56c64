"""Weight-only quantization: w = scale · u + offset, rounded to nearest, no calibration. Knows no device's layout.

int8: u in -127..127 and a scale per output. int4: u in 0..15, scale and offset per output and group of inputs, the
range of each group shrunk a little where that lowers its squared error (as in AWQ's search, Lin et al. 2023).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

GROUPS = (128, 64, 32)  # inputs that share a scale in int4: the first that divides their number
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
# Of a weight of billions of values the float32 ones alone, some five of each, would fill a GPU.
_VALUES_AT_ONCE = 2**25


class QuantizedWeight(NamedTuple):
    """A weight [N, K] in `bits` per value."""

    values: Tensor  # [N, K] int8 (8 bits) or uint8 (4 bits)
    scales: Tensor  # [G, N] float32
    offsets: Tensor | None  # [G, N] float32, None with 8 bits
    bits: int

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.values.shape[1] // len(self.scales)

    def to(self, device: torch.device) -> "QuantizedWeight":
        """The same on another device."""
        offsets = None if self.offsets is None else self.offsets.to(device)
        return QuantizedWeight(self.values.to(device), self.scales.to(device), offsets, self.bits)

    def dequantized(self) -> Tensor:
        """[N, K] float32."""
        num_outputs, num_inputs = self.values.shape
        grouped = self.values.float().view(num_outputs, -1, self.group)
        grouped = grouped * self.scales.T[:, :, None]
        if self.offsets is not None:
            grouped = grouped + self.offsets.T[:, :, None]
        return grouped.view(num_outputs, num_inputs)


def dequantized(parts: Sequence[QuantizedWeight], dtype: torch.dtype) -> Tensor:
    """Matrices of one input, [N1, K], [N2, K], …, one above the other: [N1 + N2 + …, K] in `dtype`."""
    return torch.cat([part.dequantized().to(dtype) for part in parts])


def can_quantize(weight: Tensor, bits: int) -> bool:
    """Whether this shape [N, K] has a layout: an even K, and for int4 one that a group divides."""
    num_inputs = weight.shape[1]
    return num_inputs % 2 == 0 if bits == 8 else any(num_inputs % group == 0 for group in GROUPS)


def quantize(weight: Tensor, bits: int) -> QuantizedWeight:
    """weight [N, K] in any float dtype; bits 8 or 4. At most some 700 MB are used meanwhile."""
    parts = [_quantize(rows, bits) for rows in torch.split(weight, max(1, _VALUES_AT_ONCE // weight.shape[1]))]
    if len(parts) == 1:
        return parts[0]
    offsets = [part.offsets for part in parts if part.offsets is not None]
    values, scales = torch.cat([part.values for part in parts]), torch.cat([part.scales for part in parts], dim=1)
    return QuantizedWeight(values, scales, torch.cat(offsets, dim=1) if offsets else None, bits)


def _quantize(weight: Tensor, bits: int) -> QuantizedWeight:
    if bits == 8:
        scales = (weight.float().abs().amax(dim=1) / 127).clamp_min(1e-30)
        values = (weight.float() / scales[:, None]).round_().to(torch.int8)
        return QuantizedWeight(values, scales[None].contiguous(), None, 8)
    assert bits == 4
    group = next(size for size in GROUPS if weight.shape[1] % size == 0)
    grouped = weight.float().view(len(weight), -1, group)
    low, high = grouped.amin(dim=2, keepdim=True), grouped.amax(dim=2, keepdim=True)
    best = torch.full_like(low, torch.inf)
    scales, offsets = torch.empty_like(low), torch.empty_like(low)
    values = torch.empty(grouped.shape, dtype=torch.uint8, device=weight.device)
    for shrink in _SHRINKS:
        scale = ((high - low) * (shrink / 15)).clamp_min(1e-30)
        offset = (low + high) / 2 - 7.5 * scale
        rounded = ((grouped - offset) / scale).round_().clamp_(0, 15)
        error = (rounded * scale + offset - grouped).square_().sum(dim=2, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        scales, offsets = torch.where(better, scale, scales), torch.where(better, offset, offsets)
        values = torch.where(better, rounded.to(torch.uint8), values)
    scales, offsets = (part.squeeze(2).T.contiguous() for part in (scales, offsets))
    return QuantizedWeight(values.view(weight.shape), scales, offsets, 4)
