"""Routing: which experts process a token, and with which weights, in the ways that the families know."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ....kernels import ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Choice of `top_k` experts by score: softmax over all of them, or a sigmoid each (DeepSeek-AI 2024, V3).

    A bias decides who is chosen and changes no weight. With groups, a token chooses the groups with the largest sums of
    two scores first, and experts within them.
    """

    top_k: int
    renormalize: bool  # True: the weights of the chosen sum to 1
    is_sigmoid: bool = False
    bias: Tensor | None = None  # [E] float32
    num_groups: int = 1
    num_kept_groups: int = 1
    scale: float = 1.0  # factor of all weights

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [T, E] → (weights [T, top_k] float32, expert ids [T, top_k] int32)."""
        if not self.is_sigmoid and self.bias is None and self.scale == 1.0:
            return ops.route(logits, top_k=self.top_k, renormalize=self.renormalize)
        scores = sigmoid(logits.float()) if self.is_sigmoid else logits.float().softmax(-1)
        ids = self._in_groups(scores if self.bias is None else scores + self.bias).topk(self.top_k, dim=-1).indices
        weights = scores.gather(1, ids)
        if self.renormalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.scale, ids.int()

    def _in_groups(self, choice: Tensor) -> Tensor:
        """Return the scores with -inf for experts outside the token's groups."""
        if self.num_groups == 1:
            return choice
        groups = choice.view(len(choice), self.num_groups, -1)
        kept = groups.topk(2, dim=-1).values.sum(-1).topk(self.num_kept_groups, dim=-1).indices
        is_kept = torch.zeros(groups.shape[:2], dtype=torch.bool, device=choice.device).scatter_(1, kept, True)
        return groups.masked_fill(~is_kept[:, :, None], float("-inf")).flatten(1)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)) of each element, whose bits no neighbour changes.

    A softmax over (x, 0) is the same. torch's sigmoid has other bits in the last few elements of a batch.
    """
    return torch.stack((x, torch.zeros_like(x)), dim=-1).softmax(dim=-1)[..., 0]
