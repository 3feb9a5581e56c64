"""Served: one request of a simulated run with the times of its tokens; the latencies and the service level of many.

Pure arithmetic. Names and formulas are those of `vllm bench serve` (TTFT, ITL) and of FastGen's effective throughput.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_EMA_SPAN = 16  # tokens, as in FastGen's benchmark: pandas' ewm(span=16).mean()


@dataclass(slots=True)
class Served:
    """When a request came and when each of its tokens did, in simulated seconds."""

    prompt_len: int
    arrival_s: float
    token_times: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        """Seconds from arrival to the first token."""
        return self.token_times[0] - self.arrival_s

    @property
    def gaps(self) -> list[float]:
        """Seconds between its tokens."""
        times = self.token_times
        return [later - earlier for earlier, later in itertools.pairwise(times)]


@dataclass(frozen=True, kw_only=True)
class ServiceLevel:
    """What a request must get to count (Holmes et al. 2024, DeepSpeed-FastGen, arXiv 2401.08671).

    The first token within prompt_len / prompt_rate seconds; the exponential moving average (span 16) of the gaps
    between its tokens never above max_gap_s.
    """

    prompt_rate: float  # prompt tokens per second
    max_gap_s: float

    def is_met_by(self, served: Served) -> bool:
        """Whether this request got it."""
        if served.ttft > served.prompt_len / self.prompt_rate:
            return False
        return all(average <= self.max_gap_s for average in moving_average(served.gaps))


def moving_average(values: Iterable[float], *, span: int = _EMA_SPAN) -> list[float]:
    """Exponential moving averages, alpha 2 / (span + 1), of the values so far; weights normalised from the start on."""
    keep = 1 - 2 / (span + 1)
    total = weight = 0.0
    averages = []
    for value in values:
        total = value + keep * total
        weight = 1 + keep * weight
        averages.append(total / weight)
    return averages


def effective_throughput(requests: Sequence[Served], level: ServiceLevel, *, duration_s: float) -> float:
    """Requests per second that met the service level, over the whole run."""
    return sum(level.is_met_by(request) for request in requests) / duration_s if duration_s else 0.0


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Of sorted values, interpolated linearly between neighbours (numpy's default); None of nothing."""
    if not ordered:
        return None
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
