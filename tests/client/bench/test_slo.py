"""Service levels, worked out by hand."""

import pytest

from splitfuse.client.bench.latency import Outcome
from splitfuse.client.bench.slo import ServiceLevel, effective_throughput, moving_average


def served(*token_times: float) -> Outcome:
    """Return the outcome of a request of 50 tokens, sent at 1 s."""
    return Outcome.of_tokens(50, sent=1.0, token_times=token_times)


def test_moving_average_is_pandas_ewm() -> None:
    values, keep = [1.0, 2.0, 4.0, 0.0, 7.5], 15 / 17
    weights = [keep**age for age in range(5)]
    expected = [
        sum(weight * value for weight, value in zip(weights, reversed(values[:n]), strict=False)) / sum(weights[:n])
        for n in range(1, 6)
    ]
    assert moving_average(values) == pytest.approx(expected)


def test_effective_throughput() -> None:
    level = ServiceLevel(prompt_rate=100.0, max_gap_s=0.1)
    good = served(1.5, 1.55, 1.6)
    late = served(1.6, 1.65)
    slow = served(1.4, 1.45, 1.9)
    single = served(1.2)
    assert [level.is_met_by(outcome) for outcome in (good, late, slow, single)] == [True, False, False, True]
    assert effective_throughput([good, late, slow, single], level, duration_s=4.0) == 0.5
