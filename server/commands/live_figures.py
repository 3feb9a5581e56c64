"""LiveFigures: builds the screen of `splitfuse top` from the events of /stats/stream. No HTTP."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...client.bench.latency import percentile

_NUM_STEPS = 200
_NUM_SAMPLES = 2000
_WINDOW_S = 5.0
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class _RequestFigures:
    """One request so far."""

    shape: Mapping[str, Any]
    computed: int = 0
    num_tokens: int = 0
    last_token: float | None = None
    phase: str = "queued"


def printable(text: str) -> str:
    """Replace characters that could move a terminal's cursor, change its colours or its reading direction."""
    return "".join(character if character.isprintable() else "�" for character in text)


class LiveFigures:
    """Figures of the last steps. `take` adds an event; `screen` shows the figures."""

    def __init__(self, about: Mapping[str, Any] | None = None) -> None:
        self.about = about or {}
        self._steps: deque[Mapping[str, Any]] = deque(maxlen=_NUM_STEPS)
        self._requests: dict[int, _RequestFigures] = {}
        self._gaps: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self._ttfts: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self._outputs: deque[tuple[float, int]] = deque(maxlen=_NUM_SAMPLES)  # time, number of tokens

    def take(self, event: str, data: Any) -> None:
        """Add one event of the stream. Unknown events are ignored."""
        if event == "requests":
            for shape in data:
                self._requests.setdefault(shape["number"], _RequestFigures(shape))
        elif event == "steps":
            decodes: list[int] = []
            for record in data:
                # true: unchanged since the previous record
                decodes = decodes if record.get("decodes") is True else record.get("decodes", [])
                self._add({**record, "decodes": decodes})
        elif event == "ended":
            for number, _, _ in data:
                self._requests.pop(number, None)

    def _add(self, record: Mapping[str, Any]) -> None:
        self._steps.append(record)
        num_tokens = 0
        for number, start, count in record.get("chunks", ()):
            if (seen := self._requests.get(number)) is not None:
                seen.phase, seen.computed = "prefill", start + count
                if seen.computed >= seen.shape["prompt"] + seen.num_tokens:
                    num_tokens += self._give_token(seen, record["end"])
        for number in record.get("decodes", ()):
            if (seen := self._requests.get(number)) is not None:
                seen.phase = "decode"
                num_tokens += self._give_token(seen, record["end"])
        for number, mode, *_ in record.get("preempted", ()):
            if (seen := self._requests.get(number)) is not None:
                seen.phase = f"preempted, {mode}"
        self._outputs.append((record["end"], num_tokens))

    def _give_token(self, seen: _RequestFigures, now: float) -> int:
        if seen.last_token is None:
            self._ttfts.append(now - seen.shape["arrival"])
        else:
            self._gaps.append(now - seen.last_token)
        seen.last_token = now
        seen.num_tokens += 1
        return 1

    def screen(self, *, width: int, height: int) -> list[str]:
        """Return at most `height` lines of at most `width` characters."""
        last = self._steps[-1] if self._steps else {}
        used = last.get("blocks", [0, 0])[0]
        num_blocks = self.about.get("num_blocks", 0)
        lines = [
            f"{self.about.get('model', 'connecting …')}  policy {self.about.get('batching_policy', '–')}  "
            f"budget {self.about.get('budget', '–')} tokens{self._limit()}",
            "",
            f"running {last.get('running', 0):>5}   waiting {last.get('waiting', 0):>5}   "
            f"swapped {last.get('swapped', 0):>5}   blocks {used}/{num_blocks}",
            f"tokens/s {self._rate():>8.1f}   first token {_times(self._ttfts)}   gap {_times(self._gaps)}",
            "",
            f"tokens per step  {bars([_num_tokens(step) for step in self._steps], width - 17)}",
            f"ms per step      {bars([step['end'] - step['start'] for step in self._steps], width - 17)}",
            "",
            f"{'request':>8}  {'id':<10}{'prompt':>14}{'output':>8}  phase",
            *self._request_lines(),
        ]
        return [printable(line)[:width] for line in lines[:height]]

    def _limit(self) -> str:
        return "  this key sees its own requests only" if self.about.get("watches") == "own" else ""

    def _rate(self) -> float:
        if not self._outputs:
            return 0.0
        end = self._outputs[-1][0]
        recent = [(when, count) for when, count in self._outputs if when > end - _WINDOW_S]
        return sum(count for _, count in recent[1:]) / max(0.05, end - recent[0][0])

    def _request_lines(self) -> Iterable[str]:
        for number, seen in self._requests.items():
            shape = seen.shape
            prompt = f"{min(seen.computed, shape['prompt'])}/{shape['prompt']}"
            tag = str(shape.get("id", "–"))[:8]
            yield f"{number:>8}  {tag:<10}{prompt:>14}{seen.num_tokens:>8}  {seen.phase}"


def bars(values: Sequence[float], width: int) -> str:
    """Draw the last values as a line of bars; the largest value has full height."""
    visible = list(values)[-max(0, width) :] if width > 0 else []
    largest = max(visible, default=0)
    if not largest:
        return ""
    return "".join(_BARS[max(1, round(value / largest * (len(_BARS) - 1)))] if value else " " for value in visible)


def _num_tokens(record: Mapping[str, Any]) -> int:
    chunks: Sequence[Sequence[int]] = record.get("chunks", ())
    return sum(count for _, _, count in chunks) + len(record.get("decodes", ()))


def _times(values: Iterable[float]) -> str:
    ordered = sorted(values)
    if not ordered:
        return "–"
    median, p99 = percentile(ordered, 50), percentile(ordered, 99)
    return f"{1e3 * (median or 0):.0f} ms (P99 {1e3 * (p99 or 0):.0f})"
