"""InterleavedRope: base of families that rotate neighbours of a head, 2i with 2i + 1, instead of i with i + half.

Scores do not change if q and k are reordered alike, so their rows are reordered as they load.
"""

from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight
from .decoder import Decoder


class InterleavedRope(Decoder):
    """Decoder whose checkpoints have the pairs of a rotation side by side."""

    interleaved: ClassVar[tuple[str, ...]] = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")

    @cached_property
    def _halves(self) -> Tensor:
        """Dimensions of a head [D] in the order that rotates halves: even ones, odd ones, then fixed ones."""
        rotary_dim = max(rope.rotary_dim for rope in self.config.ropes)
        pairs = torch.arange(rotary_dim).view(-1, 2).T.flatten()
        return torch.cat([pairs, torch.arange(rotary_dim, self.config.head_dim)])

    def _take(self, name: str, *shape: int) -> Tensor:
        tensor = super()._take(name, *shape)
        return tensor[self._order(shape[0])] if name.endswith(self.interleaved) else tensor

    def _take_weight(self, name: str, *shape: int) -> Tensor | QuantizedWeight:
        weight = super()._take_weight(name, *shape)  # a plain one comes from _take
        if isinstance(weight, Tensor) or not name.endswith(self.interleaved):
            return weight
        return weight.rows(self._order(shape[0]))

    def _order(self, num_rows: int) -> Tensor:
        heads = torch.arange(0, num_rows, self.config.head_dim)
        return (heads[:, None] + self._halves).flatten()
