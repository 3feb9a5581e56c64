"""Figures of a request that has ended: tokens and seconds, over all of its jobs."""

from collections.abc import Iterable
from dataclasses import dataclass

from ....engine.core.outputs import RequestMetrics
from .request_ends import RequestRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestFigures:
    """Tokens, and seconds since the arrival; None for events that did not happen."""

    finish_reasons: tuple[str, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    queue_s: float | None
    ttft_s: float | None
    total_s: float

    @classmethod
    def of(cls, record: RequestRecord) -> "RequestFigures":
        """Collect the figures of a request that has ended."""
        outputs = [output for job in record.jobs for output in job.outputs]
        metrics = [output.metrics for output in outputs if output.metrics is not None]
        return cls(
            finish_reasons=tuple(dict.fromkeys(output.finish_reason for output in outputs if output.finish_reason)),
            num_prompt_tokens=sum(job.num_prompt_tokens for job in record.jobs),
            num_cached_tokens=sum(job.num_cached_tokens for job in record.jobs),
            num_output_tokens=sum(job.num_completion_tokens for job in record.jobs),
            queue_s=_since(record, (m.first_scheduled_time for m in metrics)),
            ttft_s=_since(record, (m.first_token_time for m in metrics)),
            total_s=record.end - record.arrival,
        )


def first_metrics(record: RequestRecord) -> RequestMetrics | None:
    """Return the metrics of the first output that ended."""
    return next((metrics for job in record.jobs for metrics in job.metrics), None)


def _since(record: RequestRecord, times: Iterable[float | None]) -> float | None:
    known_times = [time for time in times if time is not None]
    return min(known_times) - record.arrival if known_times else None
