"""Measurements of a load run: one record per request, and the figures of a whole run. Pure arithmetic.

Names and formulas follow `vllm bench serve`, so that figures can stand side by side:
TTFT = sent -> first output; ITL = every gap between two chunks, pooled; E2EL = sent -> last output;
TPOT = (E2EL - TTFT) / (output tokens - 1), for requests of at least two tokens.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

KINDS = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Record of one request; times in seconds. With `error` set the other fields mean nothing."""

    prompt_len: int
    output_len: int = 0
    ttft: float = 0.0
    itls: list[float] = field(default_factory=list)
    e2el: float = 0.0
    error: str | None = None
    num_joined: int = 0  # events that one read of the socket brought together with an earlier one

    @classmethod
    def of_tokens(cls, prompt_len: int, *, sent: float, token_times: Sequence[float]) -> "Outcome":
        """Return the outcome of a request sent at `sent` whose tokens came one by one at `token_times`."""
        return cls(
            prompt_len=prompt_len,
            output_len=len(token_times),
            ttft=token_times[0] - sent,
            itls=[later - earlier for earlier, later in itertools.pairwise(token_times)],
            e2el=token_times[-1] - sent,
        )

    @property
    def tpot(self) -> float:
        """Mean seconds per output token after the first; 0 for an output of one token."""
        return (self.e2el - self.ttft) / (self.output_len - 1) if self.output_len > 1 else 0.0

    def meets(self, limits_ms: Mapping[str, float]) -> bool:
        """True if every limit holds (keys ttft, tpot, e2el)."""
        return all(getattr(self, kind) * 1000 <= limit for kind, limit in limits_ms.items())


@dataclass(frozen=True)
class Spread:
    """Distribution in milliseconds; `percentiles` by their number."""

    mean: float = 0.0
    median: float = 0.0
    std: float = 0.0
    percentiles: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Figures of a whole run. Throughputs are per second of its duration; goodput is None without limits."""

    completed: int
    failed: int
    duration: float
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    joined_share: float  # share of gaps between events that came together
    spreads: Mapping[str, Spread]


def summarize(
    outcomes: Sequence[Outcome],
    duration: float,
    *,
    percentiles: Sequence[float] = (99.0,),
    goodput: Mapping[str, float] | None = None,
) -> Summary:
    """Return the figures of a run that took `duration` seconds; `goodput` holds limits in milliseconds."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    num_input = sum(outcome.prompt_len for outcome in good)
    num_output = sum(outcome.output_len for outcome in good)
    samples = {
        "ttft": [outcome.ttft for outcome in good],
        "tpot": [outcome.tpot for outcome in good if outcome.output_len > 1],
        "itl": [gap for outcome in good for gap in outcome.itls],
        "e2el": [outcome.e2el for outcome in good],
    }
    return Summary(
        completed=len(good),
        failed=len(outcomes) - len(good),
        duration=duration,
        total_input_tokens=num_input,
        total_output_tokens=num_output,
        request_throughput=len(good) / duration,
        request_goodput=sum(outcome.meets(goodput) for outcome in good) / duration if goodput else None,
        output_throughput=num_output / duration,
        total_token_throughput=(num_input + num_output) / duration,
        joined_share=sum(outcome.num_joined for outcome in good) / max(1, len(samples["itl"])),
        spreads={kind: spread(samples[kind], percentiles) for kind in KINDS},
    )


def spread(seconds: Sequence[float], percentiles: Sequence[float]) -> Spread:
    """Return mean, median, population standard deviation and percentiles in milliseconds; zeros for no samples."""
    if not seconds:
        return Spread(percentiles=dict.fromkeys(percentiles, 0.0))
    ordered = sorted(second * 1000 for second in seconds)
    return Spread(
        mean=statistics.fmean(ordered),
        median=percentile(ordered, 50.0) or 0.0,
        std=statistics.pstdev(ordered),
        percentiles={number: percentile(ordered, number) or 0.0 for number in percentiles},
    )


def percentile(ordered: Sequence[float], number: float) -> float | None:
    """Return a percentile of sorted values, linear between the two nearest; None if there are no values."""
    if not ordered:
        return None
    position = (len(ordered) - 1) * number / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
