"""Explanation of one output's life, from its history and its metrics: a timeline in words, and shares that add up."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...core.outputs import RequestMetrics
from .history import History
from .words import phase_text, sentence

# Text for a request without a history: an earlier server that kept none stored it.
_NOT_KNOWN = "when each thing happened is not known of this request"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of one output. Times in seconds since arrival. `shares` of phases (history.py) add up to `e2e_s`."""

    timeline: list[dict[str, Any]]
    shares: dict[str, float]
    e2e_s: float
    ttft_s: float | None
    predicted_ttft_s: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "e2e_s": self.e2e_s,
            "ttft_s": self.ttft_s,
            "predicted_ttft_s": self.predicted_ttft_s,
            "shares": self.shares,
            "share_texts": {phase: phase_text(phase) for phase in self.shares},
            "timeline": self.timeline,
        }


def explain(metrics: RequestMetrics, *, now: float, finish_reason: str | None, sees_others: bool = True) -> Explanation:
    """Explain an output that has ended, or an unfinished one up to `now` (in the metrics' clock).

    Without `sees_others` the timeline has no numbers of other requests and of blocks.
    """
    arrival, first = metrics.arrival_time, metrics.first_token_time
    end = now if metrics.finished_time is None else metrics.finished_time
    history = _coarse(metrics, end) if metrics.history is None else metrics.history
    assert isinstance(history, History)
    ttft = None if first is None else first - arrival
    timeline = [_entry(0.0, "arrived", f"{metrics.num_prompt_tokens} prompt tokens")]
    events = history.events if sees_others else [event.without_others() for event in history.events]
    timeline += [_entry(event.time, event.what, sentence(event), event.numbers) for event in events]
    if metrics.history is None:
        timeline.append(_entry(0.0, "unknown", _NOT_KNOWN))
    if history.num_more:
        timeline.append(_entry(history.events[-1].time, "more", f"{history.num_more} more events are not kept"))
    if ttft is not None:
        timeline.append(_entry(ttft, "first token", _first_token(history, ttft)))
    if finish_reason is not None:
        timeline.append(_entry(end - arrival, "ended", _ended(metrics, finish_reason)))
    timeline.sort(key=lambda entry: entry["t"])
    return Explanation(timeline, dict(history.seconds), end - arrival, ttft, history.predicted_ttft)


def _entry(time: float, what: str, why: str, numbers: Sequence[float] = ()) -> dict[str, Any]:
    entry: dict[str, Any] = {"t": time, "what": what, "why": why}
    return entry | {"numbers": list(numbers)} if numbers else entry


def _first_token(history: History, ttft: float) -> str:
    goal_s = next((event.numbers[0] for event in history.events if event.what == "goal"), None)
    slack = None if goal_s is None else 1e3 * (goal_s - ttft)
    goal = "" if slack is None else f"; {abs(slack):.0f} ms {'before' if slack >= 0 else 'after'} it was due"
    if history.predicted_ttft is None:
        return f"not predicted: too few steps had been seen, or too many requests were there{goal}"
    return f"predicted after {1e3 * history.predicted_ttft:.0f} ms when it came{goal}"


def _ended(metrics: RequestMetrics, finish_reason: str) -> str:
    text = f"{finish_reason}, after {metrics.num_output_tokens} tokens"
    if metrics.num_draft_tokens:
        text += f"; {metrics.num_accepted_tokens} of {metrics.num_draft_tokens} drafted tokens were accepted"
    return text


def _coarse(metrics: RequestMetrics, end: float) -> History:
    """Return a coarse history from the metrics' four times alone."""
    times = [metrics.arrival_time, metrics.first_scheduled_time, metrics.first_token_time, end]
    bounds = [end if time is None else time for time in times]
    names = ("queue.unknown", "prefill", "decode.alone")
    seconds = {name: after - before for name, before, after in zip(names, bounds, bounds[1:], strict=False)}
    return History((), seconds)
