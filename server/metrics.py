"""Prometheus metrics under vLLM's names, in their own registry. Labels come from closed sets only.

The engine reports counters and histograms (Metrics is an EngineObserver). Gauges, and counters that the engine keeps
itself, are read from it at each scrape.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Self

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ..engine.core.outputs import RequestMetrics, StepStats

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # process-wide: no _created series

# vLLM's buckets, so that its dashboards fit; the small ones are for small models on CPU.
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_PER_TOKEN = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_REQUEST_SECONDS = (
    *(0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_REQUEST_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))

_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("Seconds from arrival to the first token.", _TTFT),
    "inter_token_latency_seconds": ("Seconds between two tokens of a request.", _PER_TOKEN),
    "request_time_per_output_token_seconds": ("Mean seconds per token after the first, per request.", _PER_TOKEN),
    "e2e_request_latency_seconds": ("Seconds from arrival to the last token.", _REQUEST_SECONDS),
    "request_queue_time_seconds": ("Seconds from arrival to the first step.", _REQUEST_SECONDS),
    "iteration_tokens_total": ("Tokens in one step.", _STEP_TOKENS),
    "request_prompt_tokens": ("Prompt tokens of a request.", _REQUEST_TOKENS),
    "request_generation_tokens": ("Generated tokens of a request.", _REQUEST_TOKENS),
    "request_prefill_time_seconds": ("Seconds from the first step to the first token.", _REQUEST_SECONDS),
    "request_decode_time_seconds": ("Seconds from the first token to the last.", _REQUEST_SECONDS),
    "request_inference_time_seconds": ("Seconds from the first step to the last token.", _REQUEST_SECONDS),
    "request_max_num_generation_tokens": ("Tokens of a request's longest output.", _REQUEST_TOKENS),
    "request_params_n": ("Outputs requested per request.", (1, 2, 5, 10, 20, 50)),
}
# Names in older dashboards for vLLM.
_OLD_NAMES = {"inter_token_latency_seconds": "time_per_output_token_seconds"}
# Settings that are labels of cache_config_info.
_CACHE_SETTINGS = ("block_size", "kv_cache_dtype", "gpu_memory_utilization", "enable_prefix_caching", "swap_space")
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_FINISH_REASONS = ("stop", "length", "abort", "timeout", "error")
_COUNTERS: dict[str, tuple[str, str | None, tuple[str, ...]]] = {
    "prompt_tokens": ("Prompt tokens computed.", None, ()),
    "generation_tokens": ("Tokens generated.", None, ()),
    "num_preemptions": ("Sequences preempted.", "mode", ("recompute", "swap")),
    "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", None, ()),
    "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", None, ()),
    "ignored_fields": ("Known fields of requests that have no effect.", None, ()),
    "schema_check_failures": (
        "Finished answers that break a keyword of their schema that no grammar enforces.",
        None,
        (),
    ),
    "request_success": ("Outputs that ended, by reason.", "finished_reason", _FINISH_REASONS),
}
_DRAFT_COUNTERS: dict[str, str] = {
    "spec_decode_num_drafts": "Drafts verified.",
    "spec_decode_num_draft_tokens": "Draft tokens verified.",
    "spec_decode_num_accepted_tokens": "Draft tokens accepted.",
}
_GAUGES = {
    "num_requests_running": "Sequences in the running batch.",
    "num_requests_waiting": "Sequences waiting to be scheduled.",
    "num_requests_swapped": "Sequences swapped out to host memory.",
    "kv_cache_usage_perc": "Share of the KV cache's blocks in use, 0 to 1.",
    "grammar_cache_bytes": "Approximate size of the cached compiled grammars.",
    "prefix_cache_disk_bytes": "Size of the prefix cache on disk, as known to the server that writes it.",
    "results_file_bytes": "Size of the file of kept results, with its write-ahead log.",
    "results_journal_lag_seconds": "Age of the oldest event of a kept result that is not on disk.",
}
# Counters that are kept elsewhere.
_KEPT_COUNTERS = {
    "connections_refused": "Connections refused with 503: over --max-connections, or too many from one address.",
    "grammar_cache_queries": "Grammars requested, by structured output or tools that must be called.",
    "grammar_cache_hits": "Grammars requested that were already compiled.",
    "grammar_refusals": "Grammars that could not be used.",
    "kernels_compiled": "GPU kernels compiled while serving; steps wait for each.",
    "prefix_cache_disk_hits": "Prompt tokens whose blocks came from disk.",
    "prefix_cache_disk_read_bytes": "Bytes read from the prefix cache on disk.",
    "prefix_cache_disk_written_bytes": "Bytes written to the prefix cache on disk.",
    "prefix_cache_disk_damaged": "Files of the prefix cache on disk that were no good.",
    "log_lines_dropped": "Lines dropped because standard output or standard error was too slow.",
    "ttft_goal_hits": "Ended requests whose first token came within their goal, ttft_ms.",
    "ttft_goal_misses": "Ended requests whose first token came later than their goal, ttft_ms.",
    "itl_goal_hits": "Ended requests whose mean time between tokens was within their goal, itl_ms.",
    "itl_goal_misses": "Ended requests whose mean time between tokens was above their goal, itl_ms.",
    "cuda_graphs_captured": "CUDA graphs captured while serving, for steps that lacked one.",
}


class Metrics:
    """EngineObserver that counts."""

    def __init__(
        self,
        *,
        prefix: str,
        model_name: str,
        stats: Callable[[], dict[str, object]],
        num_speculative_tokens: int = 0,
        cache_config: Mapping[str, str] | None = None,
    ) -> None:
        """`num_speculative_tokens`: the longest draft; 0 = no speculation, and no metrics for it.

        `cache_config`: labels of cache_config_info.
        """
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(_Snapshot(prefix, model_name, stats, cache_config or {}))
        prometheus_client.ProcessCollector(registry=self._registry)
        self._answers = prometheus_client.Counter(
            f"{prefix}http_requests",
            "Answered HTTP requests; 499: the client left before.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._counters: dict[tuple[str, str], prometheus_client.Counter] = {}
        self._histograms = {
            name: _Histogram([prefix + series for series in (name, _OLD_NAMES.get(name)) if series], model_name, *spec)
            for name, spec in _HISTOGRAMS.items()
        }
        for histogram in self._histograms.values():
            self._registry.register(histogram)
        counters, self._num_positions = dict(_COUNTERS), num_speculative_tokens
        if num_speculative_tokens:
            counters |= {name: (text, None, ()) for name, text in _DRAFT_COUNTERS.items()}
            positions = tuple(map(str, range(num_speculative_tokens)))
            text = "Draft tokens accepted, by their position in the draft."
            counters["spec_decode_num_accepted_tokens_per_pos"] = (text, "position", positions)
        for name, (text, label, values) in counters.items():
            names = ("model_name", label) if label else ("model_name",)
            counter = prometheus_client.Counter(prefix + name, text, names, registry=self._registry)
            for value in values or ("",):
                self._counters[name, value] = counter.labels(*((model_name, value) if label else (model_name,)))

    @classmethod
    def of(cls, settings: Any, *, stats: Callable[[], dict[str, object]]) -> Self:
        """Make the metrics of a server with these ServerSettings."""
        return cls(
            prefix=settings.metrics_prefix,
            model_name=settings.model_name,
            stats=stats,
            num_speculative_tokens=settings.max_drafts,
            cache_config={name: str(getattr(settings, name)) for name in _CACHE_SETTINGS},
        )

    def on_step(self, stats: StepStats) -> None:
        """Count one step of the engine."""
        self._count("prompt_tokens", stats.num_prefill_tokens)
        self._count("generation_tokens", stats.num_output_tokens)
        self._count("num_preemptions", stats.num_preempted - stats.num_swapped_out, "recompute")
        self._count("num_preemptions", stats.num_swapped_out, "swap")
        self._observe("iteration_tokens_total", stats.num_prefill_tokens + stats.num_decode_tokens)
        self._observe("time_to_first_token_seconds", *stats.ttfts)
        self._observe("inter_token_latency_seconds", *stats.itls)
        if stats.num_drafts and self._num_positions:  # without speculation receipts alone are drafted
            self._count("spec_decode_num_drafts", stats.num_drafts)
            self._count("spec_decode_num_draft_tokens", stats.num_draft_tokens)
            self._count("spec_decode_num_accepted_tokens", sum(stats.num_accepted_tokens_per_pos))
            for position, count in enumerate(stats.num_accepted_tokens_per_pos[: self._num_positions]):
                self._count("spec_decode_num_accepted_tokens_per_pos", count, str(position))

    def on_answer(self, route: str, method: str, status: int) -> None:
        """Count one answer by its declared path."""
        self._answers.labels(route, method if method in _METHODS else "other", status).inc()

    def on_ignored_fields(self, count: int) -> None:
        """Count the fields of one request that had no effect."""
        self._count("ignored_fields", count)

    def on_answer_checked(self, report: Mapping[str, object]) -> None:
        """Count a complete answer that was checked and breaks its schema."""
        self._count("schema_check_failures", bool(report["x_schema_errors"]))

    def on_output_finished(self, metrics: RequestMetrics, finish_reason: str) -> None:
        """Count one finished output."""
        self._count("request_success", 1, finish_reason if finish_reason in _FINISH_REASONS else "error")
        self._count("prefix_cache_queries", metrics.num_prompt_tokens)
        self._count("prefix_cache_hits", metrics.num_cached_tokens)
        self._observe("request_prompt_tokens", metrics.num_prompt_tokens)
        self._observe("request_generation_tokens", metrics.num_output_tokens)
        if metrics.first_scheduled_time is not None:
            self._observe("request_queue_time_seconds", metrics.first_scheduled_time - metrics.arrival_time)
            if metrics.first_token_time is not None:
                self._observe("request_prefill_time_seconds", metrics.first_token_time - metrics.first_scheduled_time)
        if metrics.finished_time is None:
            return
        if metrics.first_scheduled_time is not None:
            self._observe("request_inference_time_seconds", metrics.finished_time - metrics.first_scheduled_time)
        if metrics.first_token_time is not None:
            self._observe("request_decode_time_seconds", metrics.finished_time - metrics.first_token_time)
        self._observe("e2e_request_latency_seconds", metrics.finished_time - metrics.arrival_time)
        if metrics.first_token_time is not None and metrics.num_output_tokens > 1:
            decode_s = metrics.finished_time - metrics.first_token_time
            self._observe("request_time_per_output_token_seconds", decode_s / (metrics.num_output_tokens - 1))

    def on_job_end(self, num_output_tokens: Sequence[int]) -> None:
        """Count one request whose outputs have all ended, with the tokens of each output."""
        self._observe("request_params_n", len(num_output_tokens))
        self._observe("request_max_num_generation_tokens", max(num_output_tokens))

    def render(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return prometheus_client.generate_latest(self._registry)

    def _count(self, name: str, amount: float, label: str = "") -> None:
        self._counters[name, label].inc(amount)

    def _observe(self, name: str, *values: float) -> None:
        self._histograms[name].observe(values)


class _Histogram(Collector):
    """Histogram without the Prometheus client's locks and its walk through the buckets: 1.2 us for each token."""

    def __init__(self, names: Sequence[str], model_name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._names = names
        self._text = text
        self._model_name = model_name
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, values: Sequence[float]) -> None:
        """Count the values. A bucket takes values up to and including its bound."""
        for value in values:
            self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += sum(values)

    def collect(self) -> Iterable[Metric]:
        """Yield one sample per bucket, count and sum, under each of the names."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for name in self._names:
            family = HistogramMetricFamily(name, self._text, labels=["model_name"])
            family.add_metric(
                [self._model_name], list(zip(bounds, accumulate(self._counts), strict=True)), sum_value=self._sum
            )
            yield family


class _Snapshot(Collector):
    """Collector that reads the engine's snapshot at each scrape."""

    def __init__(
        self, prefix: str, model_name: str, stats: Callable[[], dict[str, object]], cache_config: Mapping[str, str]
    ) -> None:
        self._prefix = prefix
        self._model_name = model_name
        self._stats = stats
        self._cache_config = cache_config

    def collect(self) -> Iterable[Metric]:
        """Yield one sample per gauge, and per counter that is kept elsewhere."""
        stats = self._stats()
        num_blocks = _number(stats, "num_blocks")
        values = {
            "num_requests_running": _number(stats, "num_running"),
            "num_requests_waiting": _number(stats, "num_waiting"),
            "num_requests_swapped": _number(stats, "num_swapped"),
            "kv_cache_usage_perc": _number(stats, "num_used_blocks") / num_blocks if num_blocks else 0.0,
        }
        for name, text in _GAUGES.items():
            value = values[name] if name in values else _number(stats, name)
            yield self._family(GaugeMetricFamily, name, text, value)
        for name, text in _KEPT_COUNTERS.items():
            yield self._family(CounterMetricFamily, name, text, _number(stats, name))
        layout = {"num_gpu_blocks": f"{num_blocks:g}", **self._cache_config}
        yield self._family(GaugeMetricFamily, "cache_config_info", "Layout of the KV cache.", 1.0, **layout)

    def _family(
        self, kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, text: str, value: float, **labels: str
    ) -> Metric:
        """Build a family with one sample. `labels` are those beside the model's name."""
        family = kind(self._prefix + name, text, labels=["model_name", *labels])
        family.add_metric([self._model_name, *labels.values()], value)
        return family


def _number(stats: dict[str, object], name: str) -> float:
    value = stats.get(name, 0)
    return float(value) if isinstance(value, (int, float)) else 0.0
