"""PreemptionCosts: whether a victim's tokens are better swapped to the host or computed again."""

from ..request import Request
from .block_allocator import num_blocks_for

# No request is preempted more often than this while another can be.
MAX_PREEMPTIONS = 2


class PreemptionCosts:
    """Compares by measured rates, in seconds. Until both are known, swapping is preferred: it loses no work."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self.max_preemptions = MAX_PREEMPTIONS
        self.seconds_per_block: float | None = None  # to copy one block, one way
        self.seconds_per_token: float | None = None  # to compute one prompt token in a full step

    def prefers_swap(self, request: Request, block_size: int) -> bool:
        """For this victim, given that the host has room."""
        if self._mode != "auto":
            return self._mode == "swap"
        if self.seconds_per_block is None or self.seconds_per_token is None:
            return True
        num_blocks = num_blocks_for(request.num_computed_tokens, block_size)
        return 2 * num_blocks * self.seconds_per_block < request.num_computed_tokens * self.seconds_per_token
