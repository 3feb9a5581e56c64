"""Service levels decide which requests were served well enough to count (Holmes et al. 2024, arXiv 2401.08671)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .latency import Outcome

_EMA_SPAN = 16  # tokens, as in FastGen's benchmark: pandas' ewm(span=16).mean()


@dataclass(frozen=True, kw_only=True)
class ServiceLevel:
    """DeepSpeed-FastGen's service level: the first token comes within prompt_len / prompt_rate seconds, and the
    exponential moving average (span 16) of the gaps between tokens never exceeds max_gap_s.
    """

    prompt_rate: float  # prompt tokens per second
    max_gap_s: float

    def is_met_by(self, outcome: Outcome) -> bool:
        """True if the request counts."""
        if outcome.ttft > outcome.prompt_len / self.prompt_rate:
            return False
        return all(average <= self.max_gap_s for average in moving_average(outcome.itls))


def moving_average(values: Iterable[float], *, span: int = _EMA_SPAN) -> list[float]:
    """Return exponential moving averages, alpha 2 / (span + 1), whose weights are normalised from the start on."""
    keep = 1 - 2 / (span + 1)
    total = weight = 0.0
    averages = []
    for value in values:
        total = value + keep * total
        weight = 1 + keep * weight
        averages.append(total / weight)
    return averages


def effective_throughput(outcomes: Sequence[Outcome], level: ServiceLevel, *, duration_s: float) -> float:
    """Return requests per second that met the service level, over the whole run."""
    return sum(level.is_met_by(outcome) for outcome in outcomes) / duration_s if duration_s else 0.0
