"""Step times: how long the next step may take for the gaps between tokens, by the measured costs of steps."""

from collections.abc import Sequence

from ...config import ResolvedConfig
from ...core.cost_model import CostModel
from ...core.policies import num_interactive
from ...core.request import Request
from . import DeadlineSettings

# `--target-itl-ms auto`: a step beside streams takes so many times what the decodes take alone. A prompt so has four
# fifths of the machine, and its first token comes at most 1.25 times as late.
_STRETCH = 5.0
# A step of prompts alone: share of the machine's time that more steps may cost, each with its fixed costs.
_COST = 0.025
_FIRST_CHUNK = 256  # tokens of prompts beside decodes before the costs are known
# Share of a step's time for background requests. With its other costs it may stretch interactive gaps to 1.2 times.
_BACKGROUND = 0.1


class StepTimes:
    """Budgets from one cost model."""

    def __init__(self, config: ResolvedConfig, model: CostModel) -> None:
        self.model = model
        self._block_size = config.block_size
        self._most = config.max_num_batched_tokens
        target = config.section(DeadlineSettings).target_itl_ms
        self.is_auto = target == "auto" and config.batching_policy == "splitfuse"
        self.fixed_s = target / 1000 if isinstance(target, float | int) else None

    def usual_s(self, num_decodes: int, context: int) -> float | None:
        """Return the seconds that a step may take, beside decodes or before urgent prompts; None: as long as it takes.

        `context`: earlier tokens that the step reads, the first prompt's included.
        """
        if not self.is_auto or not self.model.has_learned:
            return self.fixed_s
        if num_decodes:
            return _STRETCH * self.model.predict(num_decodes, context)
        every, most = self.model.predict(0, 0), self.model.predict(self._most, context)
        return every * most / (_COST * most + every)

    def budget(self, seconds: float | None, num_decodes: int, context: int) -> int | None:
        """Return the tokens of a step of so many seconds; None: all. A prompt gets a block's worth at least."""
        if seconds is None:
            return num_decodes + _FIRST_CHUNK if self.is_auto and not self.model.has_learned else None
        return max(self.model.budget_for(seconds, context, maximum=self._most), num_decodes + self._block_size)

    def background_budget(self, running: Sequence[Request], waiting: Sequence[Request]) -> int | None:
        """Return how many tokens background requests may have beside interactive ones, for _BACKGROUND of a step.

        None if either kind is missing.
        """
        num_running, model = num_interactive(running), self.model
        if not num_running and not num_interactive(waiting):
            return None
        if num_running == len(running) and num_interactive(waiting) == len(waiting):
            return None
        contexts = [request.num_computed_tokens for request in running]
        seconds = model.predict(num_running, sum(contexts[:num_running]))
        per_token = model.b + model.c * max(contexts[num_running:], default=0)
        seconds *= _BACKGROUND
        return int(seconds / per_token) if seconds < per_token * self._most else None

    def prompt_s(self, request: Request, budget: int | None, num_decodes: int, context: int) -> float:
        """Return the seconds in which a request's uncomputed tokens are computed alone beside the decodes."""
        chunk = max(1, (budget or self._most) - num_decodes)
        rest, done = request.num_uncomputed_tokens, request.num_computed_tokens
        num_steps = -(-rest // chunk)
        beside = self.model.predict(num_decodes, context) - self.model.predict(0, 0)
        # Steps that are not full are shared with the next prompt.
        return (
            rest / chunk * (self.model.predict(0, 0) + beside)
            + self.model.b * rest
            + self.model.c * num_steps * (done + (rest - min(rest, chunk)) / 2)
        )
