"""Figures of a load run, on numbers small enough to check by hand."""

import pytest

from splitfuse.client.bench.latency import Outcome, Spread, percentile, spread, summarize
from splitfuse.client.bench.report import flat, table

FAST = Outcome(prompt_len=10, output_len=3, ttft=0.1, itls=[0.1, 0.3], e2el=0.5)
SLOW = Outcome(prompt_len=20, output_len=5, ttft=0.4, itls=[0.2] * 4, e2el=1.2)
SHORT = Outcome(prompt_len=30, output_len=1, ttft=0.2, itls=[], e2el=0.2)
LOST = Outcome(prompt_len=40, error="gone")
RUN = [FAST, SLOW, SHORT, LOST]


def test_tpot_is_the_time_after_the_first_token_over_the_tokens_after_it() -> None:
    assert FAST.tpot == pytest.approx(0.2)
    assert SLOW.tpot == pytest.approx(0.2)
    assert SHORT.tpot == 0.0


def test_throughputs_count_what_completed() -> None:
    summary = summarize(RUN, 4.0)
    assert (summary.completed, summary.failed) == (3, 1)
    assert (summary.total_input_tokens, summary.total_output_tokens) == (60, 9)
    assert summary.request_throughput == 0.75
    assert summary.output_throughput == 2.25
    assert summary.total_token_throughput == 17.25
    assert summary.request_goodput is None


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft": 150.0}, 1),
        ({"ttft": 400.0}, 3),
        ({"ttft": 400.0, "tpot": 100.0}, 1),  # a request of one token has no TPOT to miss
        ({"e2el": 500.0}, 2),
        ({"ttft": 200.0, "tpot": 250.0, "e2el": 1000.0}, 2),
    ],
)
def test_goodput_needs_every_limit_kept(limits: dict[str, float], good: int) -> None:
    assert summarize(RUN, 4.0, goodput=limits).request_goodput == good / 4.0


def test_the_spreads_hold_milliseconds() -> None:
    spreads = summarize(RUN, 4.0, percentiles=(50.0, 100.0)).spreads
    assert spreads["ttft"].mean == pytest.approx(700 / 3)
    assert spreads["ttft"].median == pytest.approx(200)
    assert spreads["ttft"].percentiles == pytest.approx({50.0: 200, 100.0: 400})
    assert spreads["tpot"].mean == pytest.approx(200)  # two requests: the third has one token
    assert spreads["itl"].mean == pytest.approx(200)  # six gaps, pooled
    assert spreads["itl"].std == pytest.approx((2 * 100**2 / 6) ** 0.5)
    assert spreads["e2el"].percentiles[100.0] == pytest.approx(1200)


def test_percentiles_lie_between_two_values() -> None:
    assert [percentile([1, 2, 3, 5], p) for p in (0, 25, 50, 90, 100)] == pytest.approx([1, 1.75, 2.5, 4.4, 5])
    assert percentile([7], 99) == 7


def test_percentiles_of_nothing_one_and_many() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 99) == 3.0
    assert percentile([0.0, 1.0, 2.0, 3.0], 50) == 1.5
    assert percentile([float(i) for i in range(101)], 95) == 95.0


def test_nothing_measured_is_zeros() -> None:
    assert spread([], (99.0,)) == Spread(0, 0, 0, {99.0: 0})
    assert summarize([LOST], 1.0).spreads["ttft"].mean == 0


def test_the_table_has_the_customary_lines() -> None:
    summary = summarize(RUN, 4.0, percentiles=(50.0, 99.0), goodput={"ttft": 150.0})
    lines = table(summary, request_rate=2.0, max_concurrency=8, kinds=("ttft", "tpot")).splitlines()
    assert {len(line) for line in lines if line.endswith(("=", "-"))} == {50}
    words = [" ".join(line.split()) for line in lines]
    for expected in (
        "Successful requests: 3",
        "Failed requests: 1",
        "Maximum request concurrency: 8",
        "Request rate configured (RPS): 2.00",
        "Benchmark duration (s): 4.00",
        "Request goodput (req/s): 0.25",
        "Output token throughput (tok/s): 2.25",
        "Total token throughput (tok/s): 17.25",
        "Mean TTFT (ms): 233.33",
        "Median TPOT (ms): 200.00",
        "P99 TTFT (ms): 396.00",
    ):
        assert expected in words
    assert not any("ITL" in word or "E2EL" in word for word in words)


def test_the_saved_figures_are_flat() -> None:
    saved = flat(summarize(RUN, 4.0, percentiles=(99.0, 99.9)), RUN, {"backend": "openai"})
    assert saved["backend"] == "openai"
    assert saved["mean_ttft_ms"] == pytest.approx(700 / 3)
    assert saved["p99_itl_ms"] == pytest.approx(295)
    assert {"std_e2el_ms", "median_tpot_ms", "p99.9_ttft_ms", "request_throughput", "completed"} <= set(saved)
    assert saved["ttfts"] == [0.1, 0.4, 0.2, 0.0]
    assert saved["errors"] == ["", "", "", "gone"]
