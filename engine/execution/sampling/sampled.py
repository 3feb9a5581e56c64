"""Sampled: tokens and logprobs that one step sampled, as tensors on the device or copied to the host.

SampleIndex: a place at which a token is sampled, and the tokens before that place.
"""

from typing import NamedTuple

from torch import Tensor

from ...core.request import Request


class SampleIndex(NamedTuple):
    """Place after a request's tokens, these drafts, and `num_unknown` (0 or 1) tokens that the last step samples."""

    request: Request
    draft_token_ids: tuple[int, ...] = ()
    num_unknown: int = 0

    @property
    def position(self) -> int:
        """Position of the token to sample in the sequence."""
        return self.request.num_tokens + len(self.draft_token_ids) + self.num_unknown

    @property
    def num_output_tokens(self) -> int:
        """Number of output tokens before the token to sample."""
        return self.position - self.request.num_prompt_tokens

    def ends_with(self, token_ids: tuple[int, ...]) -> bool:
        """True if the known tokens before this place end with these."""
        count = len(token_ids)
        return not count or (*self.request.token_ids[-count:], *self.draft_token_ids)[-count:] == token_ids


NOT_FINITE_TOKEN = -1  # ops.max_logits' id for a row that is not finite


class SampledLogprobs(NamedTuple):
    """Logprobs of R rows: of the sampled token and of the K likeliest tokens."""

    own: Tensor  # [R] float32, logprob of the sampled token
    ranks: Tensor  # [R] int64, 1 = the likeliest
    top_ids: Tensor  # [R, K] int64
    top: Tensor  # [R, K] float32


class Sampled(NamedTuple):
    """Sampled tokens of S rows, on the device."""

    token_ids: Tensor  # [S] int64, NOT_FINITE_TOKEN where there is none
    largest: Tensor  # [S] float32, the largest logit after all changes
    logprobs: SampledLogprobs | None = None
    raw: Tensor | None = None  # [R, V] float32, logits of the rows with logprobs, the model's own
