"""Recorded arrivals and lengths, read from the files that others publish; no text in them, and none made here.

Columns by which a file is known:
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
_KINDS = (
    ("ContextTokens", "GeneratedTokens", "TIMESTAMP"),
    ("num_prefill_tokens", "num_decode_tokens", "arrived_at"),
    ("input_length", "output_length", "timestamp"),
)


class TraceError(Exception):
    """A trace file that cannot be read; the message names the line."""


@dataclass(frozen=True)
class TraceRow:
    """One recorded request: when, in seconds after the first one (None: not recorded), and how long.

    `hash_ids` names the blocks of `block_len` tokens that the prompt is made of: equal ids, equal tokens.
    """

    prompt_len: int
    output_len: int
    arrival: float | None = None
    hash_ids: tuple[int, ...] = ()
    block_len: int = TOKENS_PER_HASH


def read_trace(path: Path, *, limit: int | None = None) -> list[TraceRow]:
    """The first `limit` rows, arrivals counted from the first one. Raises TraceError."""
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            records = _json_lines(lines) if path.suffix in (".jsonl", ".json") else csv.DictReader(lines)
            rows = [_row(record, f"{path.name}, request {n}") for n, record in enumerate(islice(records, limit), 1)]
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise TraceError(f"{path}: {exc}") from exc
    if not rows:
        raise TraceError(f"{path} holds no requests")
    first = min((row.arrival for row in rows if row.arrival is not None), default=0.0)
    return [_moved(row, -first, 1.0) for row in rows]


def scaled(row: TraceRow, *, scale: float, stretch: float) -> TraceRow:
    """Lengths divided by `scale` (below 1 it multiplies: 8 and 0.125 both mean an eighth), gaps times `stretch`."""
    factor = scale if scale < 1 else 1 / scale
    return dataclasses.replace(
        _moved(row, 0.0, stretch),
        prompt_len=max(1, round(row.prompt_len * factor)),
        output_len=max(1, round(row.output_len * factor)),
        block_len=max(1, round(row.block_len * factor)),
    )


def _moved(row: TraceRow, shift: float, stretch: float) -> TraceRow:
    return row if row.arrival is None else dataclasses.replace(row, arrival=(row.arrival + shift) * stretch)


def _json_lines(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as exc:
                raise TraceError(f"line {number} is not JSON: {exc}") from exc


def _row(record: Mapping[str, Any], where: str) -> TraceRow:
    for prompt_key, output_key, time_key in _KINDS:
        if prompt_key in record and output_key in record:
            try:
                row = TraceRow(
                    prompt_len=int(record[prompt_key]),
                    output_len=int(record[output_key]),
                    arrival=_seconds(time_key, record.get(time_key)),
                    hash_ids=tuple(record.get("hash_ids") or ()),
                )
            except (ValueError, TypeError) as exc:
                raise TraceError(f"{where}: {exc}") from exc
            if row.prompt_len < 0 or row.output_len < 0 or not math.isfinite(row.arrival or 0.0):
                raise TraceError(f"{where}: a length or time is out of range")
            return row
    raise TraceError(f"{where}: no known columns; {', '.join(f'{p} and {o}' for p, o, _ in _KINDS)} are")


def _seconds(time_key: str, value: Any) -> float | None:
    if value is None or value == "":
        return None
    if time_key == "TIMESTAMP":
        when = datetime.fromisoformat(value)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()  # no clock change within a trace
    return float(value) / (1000 if time_key == "timestamp" else 1)
