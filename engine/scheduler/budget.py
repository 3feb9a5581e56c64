"""The token budget of a step, from a latency target and what steps cost."""

from collections.abc import Sequence

from ..request import Request
from .cost_model import CostModel


def step_budget(
    model: CostModel, running: Sequence[Request], *, target_s: float, maximum: int, block_size: int
) -> int | None:
    """Tokens of the next step such that who decodes in it gets its token in time; None = all there may be."""
    num_decodes = sum(request.num_uncomputed_tokens == 1 for request in running)
    if not num_decodes:
        return None
    context = sum(request.num_computed_tokens for request in running)
    # A prompt gets a block's worth at the least: late is better than never.
    return max(model.budget_for(target_s, context, maximum=maximum), num_decodes + block_size)
