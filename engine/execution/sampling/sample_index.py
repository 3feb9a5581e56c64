"""SampleIndex: a place at which a token is sampled, and the tokens before that place."""

from typing import NamedTuple

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
