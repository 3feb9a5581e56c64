"""`splitfuse explain`: explains a recorded request's waits and steps, in words or as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...engine.core.outputs import RequestMetrics
from ...engine.errors import ConfigError
from ...engine.extras.inspection.explanation import Explanation, explain
from ...engine.extras.inspection.words import phase_text
from ...engine.extras.simulation.replay import Line, read_recording, recorded_outputs

_MAX_LISTED = 8


def run(path: Path, wanted: str, *, as_json: bool) -> int:
    """Run the command. `wanted`: an id, its beginning, or a number from 0 in order of arrival. Raises ConfigError."""
    numbers = _matching(path, wanted)
    outputs = recorded_outputs(path, lambda line: line["add"] in numbers)
    explained = [_explained(metrics) for metrics in outputs]
    if as_json:
        print(json.dumps([explanation.to_dict() for explanation in explained]))
        return 0
    for index, explanation in enumerate(explained):
        if len(explained) > 1:
            print(f"Output {index}")
        print("\n".join(_lines(explanation)))
    return 0


def _matching(path: Path, wanted: str) -> set[int]:
    """Find the outputs of the one request that is meant."""
    added = [line for _, line in read_recording(path) if "add" in line]
    matching = [line for line in added if _is_meant(line, wanted)]
    ids = sorted({str(line.get("id", line["add"])) for line in matching})
    if not matching:
        raise ConfigError(f"{path} has no request {wanted!r} among its {len(added)}; give an id or a number from 0")
    if len(ids) > 1:
        raise ConfigError(f"{wanted!r} is the beginning of {', '.join(ids[:_MAX_LISTED])}; give more of the id")
    return {line["add"] for line in matching}


def _is_meant(line: Line, wanted: str) -> bool:
    recorded = str(line.get("id", ""))  # only the beginning of the id
    if wanted.isdigit() and int(wanted) == line["add"]:
        return True
    return bool(wanted and recorded) and (recorded.startswith(wanted) or wanted.startswith(recorded))


def _explained(metrics: RequestMetrics) -> Explanation:
    assert metrics.history is not None
    spent = sum(metrics.history.seconds.values())
    reason = None if metrics.finished_time is None else "ended"
    return explain(metrics, now=metrics.arrival_time + spent, finish_reason=reason)


def _lines(explained: Explanation) -> Sequence[str]:
    first = "no token yet" if explained.ttft_s is None else f"first token after {_ms(explained.ttft_s)}"
    shares: list[tuple[str, Any]] = sorted(explained.shares.items(), key=lambda share: -share[1])
    return [
        f"{_ms(explained.e2e_s).strip()} in all, {first.strip()}",
        *(f"  {_ms(seconds)}  {phase_text(phase)}" for phase, seconds in shares if seconds > 0),
        "",
        *(f"  {_ms(entry['t'])}  {entry['what']:<12}{entry['why']}" for entry in explained.timeline),
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:10,.1f} ms"
