"""TokenMasks: bits of the tokens that a step's grammars allow, made on the host while the device computes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.batch import BatchRow
from .constraint import MaskMaker, TokenConstraint


class TokenMasks:
    """Masks for one device, made by the constraints' own mask maker."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._maker: MaskMaker | None = None  # from the first constraint

    def of_rows(self, rows: Sequence[tuple[int, BatchRow]], *, forces: bool) -> dict[str, Tensor]:
        """Return the fields "grammar_rows" [M] int64 and "grammar_masks" [M, W] int32, on the host.

        There is a mask of 32 tokens a word for each sample of a constrained row, given with the index of its first
        sample. Each grammar first catches up with its request. A grammar that has ended restricts nothing.
        `forces`: allow only the next token of a forced completion, so that no other one feeds the next step.
        """
        grammars: list[tuple[int, BatchRow, TokenConstraint]] = []
        for first, row in rows:
            request, grammar = row.request, row.request.grammar
            assert grammar is not None
            if row.end - row.num_drafts == request.num_tokens:  # otherwise it has taken the token in flight already
                grammar.follow(request.token_ids, num_prompt_tokens=request.num_prompt_tokens)
            if grammar.finish_reason is None:
                grammars.append((first, row, grammar))
        if not grammars:
            return {}
        indices = [first + count for first, row, _ in grammars for count in range(row.num_drafts + 1)]
        num_words = -(-grammars[0][2].vocab_size // 32)
        masks = torch.zeros(len(indices), num_words, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        if self._maker is None:
            self._maker = grammars[0][2].new_mask_maker()
        self._maker.fill([grammar for *_, grammar in grammars], [row.draft_token_ids for _, row, _ in grammars], masks)
        if forces:
            _force(masks, grammars)
        return {"grammar_rows": torch.tensor(indices), "grammar_masks": masks}


def _force(masks: Tensor, grammars: Sequence[tuple[int, BatchRow, TokenConstraint]]) -> None:
    """Allow one token alone in the masks of grammars whose completion is forced; no row has drafts."""
    for mask, (_, row, grammar) in zip(masks, grammars, strict=True):
        token_id = grammar.forced_token_id
        if token_id is not None and token_id not in row.request.stop_token_ids:  # min_tokens may rule out stop tokens
            mask.zero_()
            mask.view(torch.uint8)[token_id // 8] = 1 << token_id % 8
