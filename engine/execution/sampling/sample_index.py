"""SampleIndex: where one token is to be sampled, and what is known of the tokens before it."""

from typing import NamedTuple

from ...core.request import Request


class SampleIndex(NamedTuple):
    """After a request's tokens, these drafts and perhaps one token that the step before samples (`num_unknown` 1)."""

    request: Request
    draft_token_ids: tuple[int, ...] = ()
    num_unknown: int = 0

    @property
    def position(self) -> int:
        """Of the token to sample, in the sequence."""
        return self.request.num_tokens + len(self.draft_token_ids) + self.num_unknown

    @property
    def num_output_tokens(self) -> int:
        """Output tokens before it."""
        return self.position - self.request.num_prompt_tokens

    def ends_with(self, token_ids: tuple[int, ...]) -> bool:
        """Whether the tokens that are known before it end with these."""
        count = len(token_ids)
        return not count or (*self.request.token_ids[-count:], *self.draft_token_ids)[-count:] == token_ids
