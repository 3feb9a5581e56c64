"""CostModel: the seconds of a step, `a + b * tokens + c * context`, learned from the steps themselves.

`tokens`: tokens of the forward pass; `context`: sum over its rows of the tokens already in the cache, which attention
reads. The fit is recursive least squares on relative errors. It forgets only in the direction in which the new step
brings news (directional forgetting, Cao and Schwartz 2000): a thousand decodes do not wash out what a prompt has
taught. No clock of its own and no torch.
"""

import math
import statistics
from collections import deque
from typing import Any

# A 40 M-parameter Llama, bfloat16, one thread of an AMX CPU with a busy neighbour: 1,733 steps of 1 to 512 tokens at
# contexts up to 8,000; median error of this fit 11 %.
CPU_SECONDS = (3.8e-3, 3.9e-4, 1.6e-6)

_LEAST_S = 1e-7  # no step costs nothing: one stream alone gives fits of a = b = 0
_NUM_STEPS_TO_LEARN = 20  # steps after which the price of a token is worth acting on
_MEMORY = 0.98  # share of old knowledge kept in the direction of a new step: about the last 50 such steps count
_CLIPPED_MEMORY = 0.7  # share kept after a clipped step: if more steps are like it, they are right
_BAD = 0.2  # median error at the start, or after the machine's speed has changed
_BAD_MEMORY = 0.9  # share of knowledge kept in every direction while the median error is bad
_PRIOR_WEIGHT = 1e-9  # steps that the prior is worth: it only decides where nothing has been seen
_CLIP = 3.0  # most median errors by which a step may count as off
_LEAST_CLIP = 0.15
_NUM_ERRORS_KEPT = 256
_NUM_ERRORS_CLIPPED_BY = 32

Vector = list[float]
Matrix = list[list[float]]


class CostModel:
    """Predictor of step times that learns from them; a fixed one (for simulation) only predicts.

    a: seconds that every step takes. b: seconds per token of the pass. c: seconds per token of context.
    """

    def __init__(self, prior: tuple[float, float, float] = CPU_SECONDS, *, learns: bool = True) -> None:
        """`prior`: a, b, c to start from, all at least 0."""
        if min(prior) < 0 or not sum(prior) > 0:
            raise ValueError(f"a, b, c must be at least 0 and not all 0, not {prior}")
        self.learns = learns
        self.num_steps = 0
        self.a, self.b, self.c = prior
        largest = max(prior)
        self._floor = [_PRIOR_WEIGHT / max(value, largest * 1e-9) ** 2 for value in prior]
        self._information: Matrix = [[self._floor[i] if i == j else 0.0 for j in range(3)] for i in range(3)]
        self._errors: deque[float] = deque(maxlen=_NUM_ERRORS_KEPT)
        # The first steps may be off threefold without being clipped.
        self._recent: deque[float] = deque([1.0] * 8, maxlen=_NUM_ERRORS_CLIPPED_BY)

    @classmethod
    def fixed(cls, a: float, b: float, c: float) -> "CostModel":
        """Create a model that does not learn: seconds per step, per token and per token of context."""
        return cls((a, b, c), learns=False)

    @property
    def has_learned(self) -> bool:
        """True if it is fixed, or has seen enough steps for its price of a token to be worth acting on."""
        return not self.learns or self.num_steps >= _NUM_STEPS_TO_LEARN

    def predict(self, tokens: int, context: int) -> float:
        """Predict the seconds of a step: more than 0."""
        return max(_LEAST_S, self.a + self.b * tokens + self.c * context)

    def budget_for(self, target_s: float, context: int, *, maximum: int) -> int:
        """Return the most tokens whose step is predicted to end within `target_s`; at least 1, at most `maximum`."""
        room = target_s - self.a - self.c * context
        if room >= self.b * maximum:
            return maximum
        return max(1, int(room / self.b)) if room > 0 else 1

    def observe(self, tokens: int, context: int, seconds: float) -> None:
        """Learn from a step that took `seconds`."""
        if not self.learns or not 0 < seconds < math.inf:
            return
        predicted = max(self.predict(tokens, context), seconds * 1e-6)
        self.num_steps += 1
        self._errors.append(abs(predicted - seconds) / seconds)
        off = (seconds - predicted) / predicted
        self._recent.append(abs(off))
        usual = sorted(self._recent)[len(self._recent) // 2]
        limit = max(_LEAST_CLIP, _CLIP * usual)
        seconds = min(seconds, predicted * (1 + limit))
        # In units of the step's own time, so that short steps count as much as long ones. The unit is the longer of the
        # two times: a step that only seems short must not weigh more than all others together.
        unit = max(predicted, seconds)
        if usual >= _BAD:
            self._fade()
        memory = _MEMORY if off < limit else _CLIPPED_MEMORY
        self._learn([1 / unit, tokens / unit, context / unit], seconds / unit, memory)

    def _fade(self) -> None:
        for i, row in enumerate(self._information):
            row[:] = [_BAD_MEMORY * value for value in row]
            row[i] += (1 - _BAD_MEMORY) * self._floor[i]

    def _learn(self, row: Vector, target: float, memory: float) -> None:
        """Minimise (row · θ - target)² + (θ - old)ᵀ information (θ - old) over θ >= 0."""
        information = self._information
        projection = _times(information, row)
        share = (1 - memory) / max(_dot(row, projection), 1e-300)
        for i in range(3):
            for j in range(3):
                information[i][j] -= share * projection[i] * projection[j]
        known = _times(information, [self.a, self.b, self.c])
        target_vector = [old + target * x for old, x in zip(known, row, strict=True)]
        for i in range(3):
            for j in range(3):
                information[i][j] += row[i] * row[j]
        self.a, self.b, self.c = _minimum(information, target_vector)

    def to_dict(self) -> dict[str, Any]:
        """Return coefficients, and errors |predicted - measured| / measured over the last steps, for JSON."""
        ordered = sorted(self._errors)
        return {
            "a": self.a,
            "b": self.b,
            "c": self.c,
            "learns": self.learns,
            "num_steps": self.num_steps,
            "median_error": statistics.median(ordered) if ordered else None,
            "p90_error": ordered[int(0.9 * (len(ordered) - 1))] if ordered else None,
        }

    def __repr__(self) -> str:
        return f"CostModel({self.a * 1e3:.3g} ms + {self.b * 1e6:.3g} us * tokens + {self.c * 1e6:.3g} us * context)"


def _dot(left: Vector, right: Vector) -> float:
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2]


def _times(matrix: Matrix, vector: Vector) -> Vector:
    return [_dot(row, vector) for row in matrix]


_SUBSETS = ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))


def _minimum(matrix: Matrix, vector: Vector) -> Vector:
    """Find the θ >= 0 that minimises θᵀ matrix θ - 2 θᵀ vector: the best of the minima with some parts held at 0."""
    best, least = [0.0, 0.0, 0.0], 0.0
    for subset in _SUBSETS:
        solution = _solve(matrix, vector, subset)
        if solution is not None and min(solution) >= 0:
            if len(subset) == 3:
                return solution
            value = _dot(solution, _times(matrix, solution)) - 2 * _dot(solution, vector)
            if value < least:
                best, least = solution, value
    return best


def _solve(matrix: Matrix, vector: Vector, subset: tuple[int, ...]) -> Vector | None:
    """Solve the symmetric positive definite system for the parts in `subset`, the others being 0; None if singular."""
    # Scaled to a unit diagonal: the three unknowns differ by many powers of ten.
    scale = [max(matrix[i][i], 1e-300) ** -0.5 for i in subset]  # rounding may leave less than 0
    rows = [
        [matrix[i][j] * scale[p] * scale[q] for q, j in enumerate(subset)] + [vector[i] * scale[p]]
        for p, i in enumerate(subset)
    ]
    size = len(subset)
    for p in range(size):
        if rows[p][p] < 1e-13:
            return None
        for lower in rows[p + 1 :]:
            factor = lower[p] / rows[p][p]
            for q in range(p, size + 1):
                lower[q] -= factor * rows[p][q]
    solution = [0.0, 0.0, 0.0]
    for p in reversed(range(size)):
        known = sum(rows[p][q] * solution[subset[q]] / scale[q] for q in range(p + 1, size))
        solution[subset[p]] = (rows[p][size] - known) / rows[p][p] * scale[p]
    return solution
