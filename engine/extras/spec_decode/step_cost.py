"""StepTimes: the time of a step that only decodes, and the time that drafts add, both learned from such steps.

A drafted token costs less than a row: on a CPU at batch 1 it adds 3 % of a row's time, at batch 64 half of it, and a
step with any drafts may have a cost of its own. So the two are learned apart: steps without drafts by their means, with
a CostModel of their change with rows and context; the time that drafts add by a straight line. No torch, no clock.
"""

from ...core.cost_model import CostModel

_MIN_S = 1e-6
_MAX_DRIFT = 0.1  # largest recent error of predictions by which steps with drafts can be judged
_LEARN_ALL, _LEARN_EVERY = 64, 8  # after 64 steps the model learns from one in eight, because it takes 15 us
_MEAN_DECAY = 0.75  # weight of older steps in a mean: few steps are without drafts while drafts go well
_DECAY = 0.97  # weight of older steps in the time that drafts add: about 30 steps
_MAX_RATIO = 3.0  # a step that takes more than three times as long had other reasons
_PRIOR_SHARE = 0.25  # assumed time of a drafted token, as a share of a row's, before any has been seen
_PRIOR_WEIGHT = 0.5  # weight of this prior, in steps


class StepTimes:
    """Model of the times of steps, one per engine."""

    def __init__(self, prior: tuple[float, float, float]) -> None:
        """Create a model. `prior`: coefficients of the cost model until steps have been seen."""
        self._model = CostModel(prior)
        self._num_plain: dict[int, int] = {}  # steps seen without drafts, by bit_length of their number of rows
        # Means of recent steps, likewise: seconds, rows and context. The model predicts only differences from them.
        self._means: dict[int, tuple[float, float, float]] = {}
        self._drift: dict[int, float] = {}  # means of recent errors of `plain`, likewise
        self._sums = [0.0] * 5  # sums of weight, tokens, seconds, tokens², tokens · seconds

    def is_known(self, num_decodes: int) -> bool:
        """Return True if the time of steps with about `num_decodes` rows is known well enough to judge drafts by it."""
        return abs(self._drift.get(num_decodes.bit_length(), 1.0)) < _MAX_DRIFT

    def plain(self, num_decodes: int, context: int) -> float:
        """Return the seconds of a step without drafts."""
        means = self._means.get(num_decodes.bit_length())
        if means is None:
            return max(_MIN_S, self._model.predict(num_decodes, context))
        seconds, rows, tokens = means
        return max(
            _MIN_S, seconds / 2, seconds + self._model.b * (num_decodes - rows) + self._model.c * (context - tokens)
        )

    def extra(self, num_decodes: int, plain: float) -> tuple[float, float]:
        """Return the seconds that drafts add to a step of `plain` seconds: for any at all, and per drafted token."""
        assumed = _PRIOR_SHARE * plain / num_decodes
        prior = _PRIOR_WEIGHT / plain**2
        weight, tokens, seconds, squares, products = self._sums
        weight, squares, products = weight + prior, squares + prior, products + prior * assumed
        # Without rounding it is at least that of the prior alone.
        determinant = max(weight * squares - tokens * tokens, prior * (weight + squares - prior))
        token = (weight * products - tokens * seconds) / determinant
        any_at_all = (squares * seconds - tokens * products) / determinant
        if any_at_all < 0:
            return 0.0, max(0.0, products / squares)
        return (seconds / weight, 0.0) if token < 0 else (any_at_all, token)

    def added(self, num_decodes: int, num_drafted: int, plain: float, seconds: float | None) -> float:
        """Return the seconds that drafts added to a step; predicted if the step's own `seconds` are None.

        The result is at most a few times `plain`: a longer pause of the machine has other reasons.
        """
        if seconds is None:
            any_at_all, token = self.extra(num_decodes, plain)
            return any_at_all + token * num_drafted
        return min(seconds - plain, _MAX_RATIO * plain * (0.5 + num_drafted / num_decodes))

    def observe(self, num_decodes: int, num_drafted: int, context: int, seconds: float) -> None:
        """Learn from a step's time without the drafter's."""
        if seconds < _MIN_S:  # the clock stood still or was set back
            return
        plain = self.plain(num_decodes, context)
        if not num_drafted:
            self._observe_plain(num_decodes, context, seconds)
        elif self.is_known(num_decodes):
            added = self.added(num_decodes, num_drafted, plain, seconds)
            news = (1.0, num_drafted, added, num_drafted**2, num_drafted * added)
            self._sums = [_DECAY * old + new / plain**2 for old, new in zip(self._sums, news, strict=True)]

    def _observe_plain(self, num_decodes: int, context: int, seconds: float) -> None:
        size = num_decodes.bit_length()
        error = min(seconds / self.plain(num_decodes, context), _MAX_RATIO) - 1
        self._drift[size] = _mean(self._drift.get(size, 1.0), error)
        num_seen = self._num_plain[size] = self._num_plain.get(size, 0) + 1
        if num_seen <= _LEARN_ALL or num_seen % _LEARN_EVERY == 0:
            self._model.observe(num_decodes, context, seconds)
        old = self._means.get(size, (seconds, num_decodes, context))
        new = (min(seconds, _MAX_RATIO * old[0]), num_decodes, context)
        self._means[size] = (_mean(old[0], new[0]), _mean(old[1], new[1]), _mean(old[2], new[2]))


def _mean(old: float, new: float) -> float:
    return _MEAN_DECAY * old + (1 - _MEAN_DECAY) * new
