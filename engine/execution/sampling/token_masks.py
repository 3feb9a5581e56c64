"""TokenMasks: bits of the tokens that a step's rows allow, made on the host and added to the logits on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ...core.constraint import MaskMaker, TokenConstraint
from ...device import to_device


class TokenMasks:
    """Masks for one device, made by the constraints' own mask maker and copied to the device once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._maker: MaskMaker | None = None  # from the first constraint
        # Row b: terms that byte b of a mask adds to its eight logits. Adding to 128,000 takes 27 us, masked_fill 190.
        bits = torch.arange(256)[:, None] >> torch.arange(8) & 1
        self._biases = torch.where(bits == 1, 0.0, float("-inf")).to(device)

    def allowed(self, constraints: Sequence[TokenConstraint], drafts: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Return masks of the allowed next tokens, after each constraint's tokens and after each of its drafts.

        [M, W] int32 on the host, 32 tokens a word; one row per constraint and one more for each of its draft tokens,
        as in `MaskMaker.fill`. 32 W is at least the width of the logits.
        """
        drafts = drafts or [()] * len(constraints)
        num_rows = len(constraints) + sum(map(len, drafts))
        num_words = -(-constraints[0].vocab_size // 32)
        masks = torch.zeros(num_rows, num_words, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        if self._maker is None:
            self._maker = constraints[0].new_mask_maker()
        self._maker.fill(constraints, drafts, masks)
        return masks

    def force(self, mask: Tensor, token_id: int) -> None:
        """Allow one token alone; mask [W] int32 on the host."""
        mask.zero_()
        mask.view(torch.uint8)[token_id // 8] = 1 << token_id % 8

    def add_to(self, logits: Tensor, rows: Sequence[int] | Tensor, masks: Tensor) -> None:
        """Set forbidden logits to minus infinity in place: masks[i] applies to logits[rows[i]], [S, V] float32.

        `rows` ascend without repetition.
        """
        words = to_device(masks, self._device).view(torch.uint8)
        biases = functional.embedding(torch.empty_like(words, dtype=torch.int32).copy_(words), self._biases)
        biases = biases.flatten(1)[:, : logits.shape[1]]
        if len(rows) == len(logits):
            logits.add_(biases)
        else:
            logits.index_add_(0, to_device(torch.as_tensor(rows), self._device), biases)
