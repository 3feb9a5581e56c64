"""TokenMasks: bits of the tokens that a step's constraints allow, made on the host while the device computes."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.batch import BatchRow
from .constraint import MaskMaker, TokenConstraint


class _Entry(NamedTuple):
    """A row that is restricted now, with the index of its first sample."""

    first: int
    row: BatchRow
    source: TokenConstraint | None  # constraint that makes the masks
    forced: int | None  # the only token


class TokenMasks:
    """Masks for one device, made by the constraints' own mask maker."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._maker: MaskMaker | None = None  # from the first constraint

    def of_rows(self, rows: Sequence[tuple[int, BatchRow]], *, forces: bool) -> dict[str, Tensor]:
        """Return the fields "grammar_rows" [M] int64 and "grammar_masks" [M, W] int32, on the host.

        There is a mask of 32 tokens a word for each sample of a constrained row, given with the index of its first
        sample. Each constraint first catches up with its request. One that has ended restricts nothing.
        `forces`: allow only the token that is forced, so that no other one feeds the next step.
        """
        entries: list[_Entry] = []
        for first, row in rows:
            request, constraint = row.request, row.request.grammar
            assert constraint is not None
            if row.end - row.num_drafts == request.num_tokens:  # otherwise it has taken the token in flight already
                constraint.follow(request.token_ids, num_prompt_tokens=request.num_prompt_tokens)
            forced = constraint.forced_token_id if forces else None  # then no row has drafts
            if forced in request.stop_token_ids:  # min_tokens may rule out stop tokens
                forced = None
            source = constraint.mask_source
            if constraint.finish_reason is None and (source is not None or forced is not None):
                entries.append(_Entry(first, row, source, forced))
        if not entries:
            return {}
        indices = [entry.first + count for entry in entries for count in range(entry.row.num_drafts + 1)]
        num_words = -(-entries[0].row.request.grammar.vocab_size // 32)
        masks = torch.zeros(len(indices), num_words, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        self._fill(masks, entries)
        for mask, entry in zip(masks, entries, strict=False):
            if entry.forced is not None:
                mask.zero_()
                mask.view(torch.uint8)[entry.forced // 8] = 1 << entry.forced % 8
        return {"grammar_rows": torch.tensor(indices), "grammar_masks": masks}

    def _fill(self, masks: Tensor, entries: Sequence[_Entry]) -> None:
        """Set the bits that the mask maker knows. The other rows stay zero: each has a forced token."""
        made = [(at, entry) for at, entry in enumerate(entries) if entry.source is not None]
        if not made:
            return
        if self._maker is None:
            self._maker = made[0][1].source.new_mask_maker()  # type: ignore[union-attr]
        is_all = len(made) == len(entries)
        own = masks if is_all else torch.zeros_like(masks[: len(made)])  # else no row has drafts
        self._maker.fill([entry.source for _, entry in made], [entry.row.draft_token_ids for _, entry in made], own)
        if not is_all:
            masks[[at for at, _ in made]] = own
