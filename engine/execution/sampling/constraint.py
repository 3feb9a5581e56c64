"""TokenConstraint: the state of a constrained output, as the sampler uses it. Grammars and extras have one."""

from collections.abc import Sequence
from typing import Any, Protocol


class MaskMaker(Protocol):
    """Maker of the masks of all constrained rows of a step, in one call."""

    def fill(self, constraints: Sequence[Any], drafts: Sequence[Sequence[int]], masks: Any) -> None:
        """Set the bits of allowed tokens in masks [M, W] int32 on the host, which is zero.

        One row per constraint and one more per draft token, in order. A row stays zero after a draft that does not
        fit, or if its constraint has an `error`. The constraints keep their state.
        """


class TokenConstraint(Protocol):
    """State of one constrained output, which follows its tokens. Used by one thread at a time, after `follow`."""

    @property
    def error(self) -> str | None:
        """Reason why no further token can be sampled; None while one can."""

    @property
    def is_accepting(self) -> bool:
        """True if the output may end here."""

    @property
    def finish_reason(self) -> str | None:
        """Reason to end the output here: "stop" or "length"; None if it goes on."""

    @property
    def forced_from(self) -> int | None:
        """Number of output tokens before the forced completion; None if none has begun."""

    @property
    def forced_token_id(self) -> int | None:
        """Next token if it is forced, whatever is sampled; None if the model chooses it."""

    @property
    def mask_source(self) -> "TokenConstraint | None":
        """Constraint that the mask maker knows; None if all tokens are allowed."""

    @property
    def vocab_size(self) -> int:
        """Width of a mask in tokens: the larger of the tokenizer's and the logits' width."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """End tokens of the model."""

    def follow(self, token_ids: Sequence[int], *, num_prompt_tokens: int) -> None:
        """Catch up with these tokens of the request, or roll back to them."""

    def take(self, token_id: int) -> int:
        """Advance by the sampled token, or by the token that a forced completion needs. Return the token taken."""

    def new_mask_maker(self) -> MaskMaker:
        """Create a mask maker, which serves all constraints of this kind."""
