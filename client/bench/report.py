"""Report of a load run, under vLLM's names: a table for people, a flat JSON object for programs."""

import math
from collections.abc import Sequence
from typing import Any

from .latency import Outcome, Spread, Summary

_WIDTH = 50
_TITLES = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}


def table(
    summary: Summary,
    *,
    request_rate: float,
    max_concurrency: int | None,
    kinds: Sequence[str],
    server_gap_ms: float | None = None,
) -> str:
    """Return the table that ends a run. `server_gap_ms`: median gap between tokens as the server counts it."""
    rows: list[tuple[str, float | int | None]] = [
        ("Successful requests:", summary.completed),
        ("Failed requests:", summary.failed),
        ("Maximum request concurrency:", max_concurrency),
        ("Request rate configured (RPS):", None if math.isinf(request_rate) else request_rate),
        ("Benchmark duration (s):", summary.duration),
        ("Total input tokens:", summary.total_input_tokens),
        ("Total generated tokens:", summary.total_output_tokens),
        ("Request throughput (req/s):", summary.request_throughput),
        ("Request goodput (req/s):", summary.request_goodput),
        ("Output token throughput (tok/s):", summary.output_throughput),
        ("Total token throughput (tok/s):", summary.total_token_throughput),
        ("Events that came with an earlier one (%):", 100 * summary.joined_share),
        ("Median ITL by the server (ms):", server_gap_ms),
    ]
    lines = [" Serving Benchmark Result ".center(_WIDTH, "=")]
    lines += [_line(name, value) for name, value in rows if value is not None]
    for kind in kinds:
        short, title = _TITLES[kind]
        lines.append(title.center(_WIDTH, "-"))
        lines += [_line(f"{name} {short} (ms):", value) for name, value in _named(summary.spreads[kind])]
    return "\n".join([*lines, "=" * _WIDTH])


def flat(summary: Summary, outcomes: Sequence[Outcome], setup: dict[str, Any]) -> dict[str, Any]:
    """Return the object that --save-result writes: setup, figures of the run, figures of every request."""
    spreads: dict[str, float] = {}
    for kind, spread in summary.spreads.items():
        for name, value in (("mean", spread.mean), ("median", spread.median), ("std", spread.std)):
            spreads[f"{name}_{kind}_ms"] = value
        for number, value in spread.percentiles.items():
            spreads[f"p{number:g}_{kind}_ms"] = value
    figures = {name: value for name, value in vars(summary).items() if name != "spreads"}
    return {
        **setup,
        **figures,
        **spreads,
        "input_lens": [outcome.prompt_len for outcome in outcomes],
        "output_lens": [outcome.output_len for outcome in outcomes],
        "ttfts": [outcome.ttft for outcome in outcomes],
        "itls": [outcome.itls for outcome in outcomes],
        "e2els": [outcome.e2el for outcome in outcomes],
        "errors": [outcome.error or "" for outcome in outcomes],
    }


def _named(spread: Spread) -> list[tuple[str, float]]:
    percentiles = [(f"P{number:g}", value) for number, value in spread.percentiles.items()]
    return [("Mean", spread.mean), ("Median", spread.median), *percentiles]


def _line(name: str, value: float | int) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{name:<40} {shown:<10}".rstrip()
