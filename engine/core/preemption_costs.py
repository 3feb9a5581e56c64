"""PreemptionCosts: chooses between swapping a victim's tokens to the host and computing them again."""

from typing import NamedTuple

from .block_allocator import num_blocks_for
from .request import Request

# No request is preempted more often than this while another can be.
MAX_PREEMPTIONS = 2


class Prices(NamedTuple):
    """Estimated seconds of the two ways to preempt a request; None while the rate is not known."""

    swap: float | None
    recompute: float | None


class PreemptionCosts:
    """Comparison by measured rates, in seconds. Until both are known, swapping is preferred: it loses no work."""

    def __init__(self, mode: str, seconds_per_block: float | None = None, *, num_more_blocks: float = 0.0) -> None:
        """`num_more_blocks`: size of what is copied beside a request's blocks."""
        self._mode = mode
        self.max_preemptions = MAX_PREEMPTIONS
        self.seconds_per_block = seconds_per_block  # to copy one block, one way
        self._num_more_blocks = num_more_blocks
        self.seconds_per_token: float | None = None  # to compute one prompt token in a full step

    def prefers_swap(self, request: Request, block_size: int) -> bool:
        """True if the victim should be swapped out, given that the host has room."""
        if self._mode != "auto":
            return self._mode == "swap"
        prices = self.prices(request, block_size)
        return prices.swap is None or prices.recompute is None or prices.swap < prices.recompute

    def prices(self, request: Request, block_size: int) -> Prices:
        """Return the prices of a victim: copies to the host and back, or computing its tokens again."""
        num_tokens, more = request.num_computed_tokens, self._num_more_blocks
        per_block, per_token = self.seconds_per_block, self.seconds_per_token
        return Prices(
            None if per_block is None else 2 * (num_blocks_for(num_tokens, block_size) + more) * per_block,
            None if per_token is None else num_tokens * per_token,
        )
