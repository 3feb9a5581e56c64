"""Timeline: a scheduler's steps over time, read from a recording. No pictures."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from .replay import Line, read_recording


@dataclass(frozen=True, slots=True)
class Span:
    """Span of time from `start` to `end` (seconds): one step, or means over the time of several joined steps."""

    start: float
    end: float
    prefill: float = 0.0  # tokens per step
    decode: float = 0.0
    running: float = 0.0  # requests
    waiting: float = 0.0
    used_blocks: float = 0.0
    gap: float | None = None  # the longest time between two tokens of one request; None: no request got a second token
    usual_gap: float | None = None  # the gap of the median step


@dataclass(frozen=True, slots=True)
class Timeline:
    """Timeline of a run: its name, its steps from 0 s on, and the size of its pool."""

    name: str
    spans: list[Span]
    num_blocks: int = 0

    @property
    def end(self) -> float:
        """Seconds from the start of the first step to the end of the last."""
        return self.spans[-1].end

    def joined(self, max_spans: int) -> "Timeline":
        """Return this timeline with at most `max_spans` spans; more steps are joined into spans of equal length."""
        if len(self.spans) <= max_spans:
            return self
        width = self.end / max_spans or 1.0
        groups: list[list[Span]] = [[] for _ in range(max_spans)]
        for span in self.spans:
            first, last = (min(int(at / width), max_spans - 1) for at in (span.start, span.end))
            for index in range(first, last + 1):
                groups[index].append(span)
        spans = [_joined(group, i * width, (i + 1) * width) for i, group in enumerate(groups) if group]
        return replace(self, spans=spans)


def read_timeline(path: Path) -> Timeline:
    """Read the timeline of a recording. Raises ConfigError if the file is none, or has no steps."""
    spans, num_blocks = _Reader().read(line for _, line in read_recording(path))
    if not spans:
        raise ConfigError(f"{path} holds no steps; record a run with requests")
    first = spans[0].start
    spans = [replace(span, start=span.start - first, end=span.end - first) for span in spans]
    return Timeline(path.stem, spans, num_blocks)


def _joined(spans: Sequence[Span], start: float, end: float) -> Span:
    """Join the parts of these spans between two times: means weighted by time; of gaps the longest and the median."""
    # A step without duration still counts a little.
    weights = [max(min(span.end, end) - max(span.start, start), (end - start) * 1e-6) for span in spans]
    total = sum(weights)

    def mean(values: Iterable[float]) -> float:
        return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total

    gaps = [span.gap for span in spans if span.gap is not None and start < span.end <= end * (1 + 1e-9)]
    return Span(
        start,
        end,
        prefill=mean(span.prefill for span in spans),
        decode=mean(span.decode for span in spans),
        running=mean(span.running for span in spans),
        waiting=mean(span.waiting for span in spans),
        used_blocks=mean(span.used_blocks for span in spans),
        gap=max(gaps, default=None),
        usual_gap=statistics.median(gaps) if gaps else None,
    )


class _Reader:
    """Reader of a recording that follows each request's number of tokens, and the time of the last token."""

    def __init__(self) -> None:
        self._prompt_lens: dict[int, int] = {}
        self._num_tokens: dict[int, int] = {}
        self._last_token: dict[int, float] = {}
        self._step: Line = {}

    def read(self, lines: Iterable[Line]) -> tuple[list[Span], int]:
        """Return steps and pool size."""
        spans: list[Span] = []
        num_blocks = 0
        for line in lines:
            num_blocks = line.get("num_blocks", num_blocks)
            if "add" in line:
                prompt = line["prompt"]
                self._prompt_lens[line["add"]] = len(prompt) if isinstance(prompt, list) else prompt
                self._num_tokens[line["add"]] = self._prompt_lens[line["add"]]
            elif "step" in line:
                self._step = line
            elif "done" in line:
                spans.append(self._span(line))
        return spans, num_blocks

    def _span(self, done: Mapping[str, Any]) -> Span:
        step, now = self._step, done["end"]
        rows = step.get("rows", [])
        num_decode = sum(n == 1 and start >= self._prompt_lens.get(number, 0) for number, start, n in rows)
        gap = max(self._gaps(rows, done), default=None)
        return Span(
            start=step["start"],
            end=now,
            prefill=sum(n for _, _, n in rows) - num_decode,
            decode=num_decode,
            running=step.get("running", 0),
            waiting=step.get("waiting", 0),
            used_blocks=step.get("blocks", 0),
            gap=gap,
            usual_gap=gap,
        )

    def _gaps(self, rows: Sequence[Sequence[int]], done: Mapping[str, Any]) -> Iterator[float]:
        without_token = {*done.get("failed", ()), *done.get("nothing", ())}
        for index, (number, start, num_tokens) in enumerate(rows):
            if index in without_token or start + num_tokens < self._num_tokens.get(number, 0):
                continue
            self._num_tokens[number] = start + num_tokens + 1
            if number in self._last_token:
                yield done["end"] - self._last_token[number]
            self._last_token[number] = done["end"]
