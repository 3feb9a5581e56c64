"""Own steps: the share of the stream of steps that a key may see if it may not watch the requests of other keys."""

from collections.abc import Container, Iterable
from typing import Any

Record = dict[str, Any]
# Keys of a record whose values are lists of requests, or of lists that begin with a request.
_ROWS = ("chunks", "decodes", "drafts", "forced", "admitted", "preempted", "stopped_at", "left_out")
_RUNNING = ("chunks", "decodes", "left_out")


def own_steps(steps: Iterable[Record], numbers: Container[int]) -> list[Record]:
    """Return the records with rows of these requests, and nothing else in them: no sums over other requests."""
    shares = ((step, _own_rows(step, numbers)) for step in steps)
    return [{key: step[key] for key in ("step", "start", "end")} | rows for step, rows in shares if rows]


def _own_rows(step: Record, numbers: Container[int]) -> Record:
    rows = {key: [row for row in step[key] if _number(row) in numbers] for key in _ROWS if key in step}
    rows = {key: own for key, own in rows.items() if own}
    return rows | {"running": sum(len(rows.get(key, ())) for key in _RUNNING)} if rows else {}


def _number(row: Any) -> int:
    number: int = row[0] if isinstance(row, list) else row
    return number
