"""WaitPrediction: how long the requests of a core will wait, by its cost model."""

import itertools
from collections.abc import Iterable
from typing import Any

from ..core.cost_model import CostModel
from ..core.engine_core import EngineCore
from ..core.policies import num_interactive
from ..core.request import Request
from ..errors import GoalUnreachableError

# Among more requests the first token of a new one is not predicted: 0.2 us for each request.
_MAX_REQUESTS_TO_PREDICT = 64


class WaitPrediction:
    """Predictions for one core, from the requests that are there now."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def predicted_wait_s(self) -> float:
        """Return the seconds until a request that came now would get its first token; 0 before the model has learned.

        All tokens that go before it, in full steps beside the decodes that run.
        """
        model, scheduler = self._core.cost_model, self._core.scheduler
        if not model.has_learned:
            return 0.0
        running, waiting = (r[: num_interactive(r)] for r in (scheduler.running, scheduler.waiting))
        requests = (*running, *waiting)
        num_ahead = sum(request.num_uncomputed_tokens for request in requests if request.num_uncomputed_tokens > 1)
        most = self._core.config.max_num_batched_tokens
        context = sum(request.num_computed_tokens for request in running)
        return num_ahead / max(1, most - len(running)) * model.predict(most, context)

    def predicted_ttft(self, request: Request) -> float | None:
        """Return the seconds until the first token of a request that is not queued yet.

        None if the model has not learned, the request has output, or the prediction would cost too much.
        """
        model, scheduler = self._core.cost_model, self._core.scheduler
        if (outlook := self._outlook(request)) is not None:
            return float(outlook.predicted_s)
        if not model.has_learned or request.num_output_tokens:
            return None
        if len(scheduler.running) + len(scheduler.waiting) > _MAX_REQUESTS_TO_PREDICT:
            return None
        return self.predicted_wait_s() + model.predict(request.num_tokens, 0)

    def admit(self, request: Request, *, is_new: bool) -> float | None:
        """Return `predicted_ttft` of a request that is about to be queued. A new one is checked by `check_goal`."""
        if is_new:
            self.check_goal(request)
        return self.predicted_ttft(request)

    def check_goal(self, request: Request) -> None:
        """Raise GoalUnreachableError if a request's own `ttft_ms` cannot be met, and it does not take best effort."""
        params = request.params
        if params.ttft_ms is None or params.best_effort or (outlook := self._outlook(request)) is None:
            return
        if (late_s := outlook.predicted_s - outlook.goal_s) > 0:
            raise GoalUnreachableError(
                f"ttft_ms {params.ttft_ms} cannot be met: a first token is {1e3 * outlook.predicted_s:.0f} ms away; "
                f"try again in {late_s:.1f} s, or send best_effort: true",
                retry_after_s=max(1.0, late_s),
            )

    def _outlook(self, request: Request) -> Any:
        """Return the pacer's Outlook of a request with a goal; None without one, or without the extra."""
        scheduler = self._core.scheduler
        return self._core.pacer.outlook(request, scheduler.running, scheduler.waiting)

    def predicted_s_until_ended(self, num_requests: int) -> float:
        """Return the seconds until `num_requests` outputs have ended at the latest; 0 if no request is unfinished."""
        scheduler = self._core.scheduler
        requests = itertools.chain(scheduler.running, scheduler.waiting)
        most = self._core.config.max_num_seqs
        return seconds_until_ended(self._core.cost_model, requests, num_requests, max_num_seqs=most)


def seconds_until_ended(model: CostModel, requests: Iterable[Request], count: int, *, max_num_seqs: int) -> float:
    """Return the seconds until `count` of these requests, in queue order, have ended, if every output gets as long as
    it may; 0 if there are none.
    """
    rows = list(itertools.islice(requests, max_num_seqs))
    if not rows:
        return 0.0
    num_rounds, rest = divmod(count - 1, len(rows))
    num_steps = sorted(request.max_num_tokens - request.num_tokens for request in rows)
    num_prompt_tokens = sum(request.num_uncomputed_tokens for request in rows if request.num_uncomputed_tokens > 1)
    step_s = model.predict(len(rows), sum(request.num_tokens for request in rows))
    return (num_rounds + 1) * num_prompt_tokens * model.b + (num_rounds * num_steps[-1] + num_steps[rest]) * step_s
