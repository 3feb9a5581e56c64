"""Traces: arrivals and lengths of real requests, read from published files. A trace has no text.

Columns that identify a file:
    TIMESTAMP, ContextTokens, GeneratedTokens           Azure, CSV with dates
    arrived_at, num_prefill_tokens, num_decode_tokens   vidur, CSV with seconds; without arrived_at: lengths only
    timestamp, input_length, output_length, hash_ids    Mooncake, JSON lines with milliseconds, blocks of 512 tokens
"""

import csv
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

TOKENS_PER_HASH = 512
# Columns of prompt length, output length and time, and the seconds in one unit of time.
_KINDS = (
    ("ContextTokens", "GeneratedTokens", "TIMESTAMP", 1.0),
    ("num_prefill_tokens", "num_decode_tokens", "arrived_at", 1.0),
    ("input_length", "output_length", "timestamp", 1e-3),
)


class TraceError(Exception):
    """Error of a trace file that cannot be read; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """Recorded request: its arrival in seconds after the first (None: not recorded), and its lengths.

    `hash_ids` names the prompt's blocks of `block_len` tokens: equal ids mean equal tokens.
    """

    prompt_len: int
    output_len: int
    arrival: float | None = None
    hash_ids: tuple[int, ...] = ()
    block_len: int = TOKENS_PER_HASH

    def scaled(self, scale: float) -> "TraceRow":
        """Return the row with all lengths times `scale`, at least 1."""
        return dataclasses.replace(
            self,
            prompt_len=at_least_1(self.prompt_len * scale),
            output_len=at_least_1(self.output_len * scale),
            block_len=at_least_1(self.block_len * scale),
        )


def read_trace(path: Path, *, scale: float = 1.0, stretch: float = 1.0, limit: int | None = None) -> list[TraceRow]:
    """Return the first `limit` rows by arrival, lengths times `scale`, arrivals times `stretch`. Raises TraceError."""
    for name, factor in (("scale", scale), ("stretch", stretch)):
        if not (math.isfinite(factor) and factor > 0):
            raise TraceError(f"{name} must be a number above 0, not {factor}")
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            records = _json_lines(lines, path) if path.suffix in (".jsonl", ".json") else csv.DictReader(lines)
            rows = [_row(record, f"{path}, request {n}") for n, record in enumerate(islice(records, limit), 1)]
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise TraceError(f"the trace {path} cannot be read: {exc}") from exc
    if not rows:
        raise TraceError(f"the trace {path} holds no requests")
    first = min((row.arrival for row in rows if row.arrival is not None), default=0.0)
    rows.sort(key=lambda row: row.arrival or 0.0)
    return [_moved(row, first, stretch).scaled(scale) for row in rows]


def at_least_1(length: float) -> int:
    """Return a length in whole tokens."""
    return max(1, round(length))


def _moved(row: TraceRow, first: float, stretch: float) -> TraceRow:
    return row if row.arrival is None else dataclasses.replace(row, arrival=(row.arrival - first) * stretch)


def _json_lines(lines: Iterator[str], path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as exc:
                raise TraceError(f"{path}, line {number} is not JSON: {exc}") from exc
            if not isinstance(record, dict):
                raise TraceError(f"{path}, line {number} is not a JSON object")
            yield record


def _row(record: Mapping[str, Any], where: str) -> TraceRow:
    for prompt_key, output_key, time_key, unit in _KINDS:
        if prompt_key in record and output_key in record:
            try:
                row = TraceRow(
                    prompt_len=int(record[prompt_key]),
                    output_len=int(record[output_key]),
                    arrival=_seconds(record.get(time_key), unit),
                    hash_ids=tuple(int(hash_id) for hash_id in record.get("hash_ids") or ()),
                )
            except (ValueError, TypeError, OverflowError) as exc:
                raise TraceError(f"{where}: {exc}") from exc
            if row.prompt_len < 0 or row.output_len < 0 or not math.isfinite(row.arrival or 0.0):
                raise TraceError(f"{where}: a length or time is out of range")
            return row
    raise TraceError(f"{where}: no known columns; {', '.join(f'{kind[0]} and {kind[1]}' for kind in _KINDS)} are")


def _seconds(value: Any, unit: float) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and ":" in value:
        when = datetime.fromisoformat(value)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()  # UTC has no clock change
    return float(value) * unit
