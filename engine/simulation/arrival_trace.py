"""Trace: recorded arrivals and lengths, read from the files that others publish. There is no text in them.

Columns by which a file is known:
    TIMESTAMP, ContextTokens, GeneratedTokens           Azure, CSV with dates
    num_prefill_tokens, num_decode_tokens               Sarathi and vidur, CSV with lengths only (arrived_at: seconds)
    timestamp, input_length, output_length, hash_ids    Mooncake, JSON lines with milliseconds, blocks of 512 tokens
"""

import csv
import dataclasses
import hashlib
import json
import math
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import ConfigError

TOKENS_PER_HASH = 512
# Columns of the prompt's length, the output's and the time, and how many seconds one unit of the time is.
_KINDS = (
    ("ContextTokens", "GeneratedTokens", "TIMESTAMP", 1.0),
    ("num_prefill_tokens", "num_decode_tokens", "arrived_at", 1.0),
    ("input_length", "output_length", "timestamp", 1e-3),
)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request to be: when it comes, in seconds after the first one, and how long it is.

    `hash_ids` name the blocks of `block_len` tokens that its prompt is made of: equal ids, equal tokens.
    """

    arrival_s: float
    prompt_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()
    block_len: int = TOKENS_PER_HASH

    def scaled(self, *, scale: float, stretch: float) -> "TraceRequest":
        """Lengths times `scale`, at least 1; times times `stretch`."""
        return TraceRequest(
            arrival_s=self.arrival_s * stretch,
            prompt_len=_length(self.prompt_len * scale),
            output_len=_length(self.output_len * scale),
            hash_ids=self.hash_ids,
            block_len=_length(self.block_len * scale),
        )


def read_trace(path: Path, *, scale: float = 1.0, stretch: float = 1.0, limit: int | None = None) -> list[TraceRequest]:
    """The first `limit` requests, in order of arrival, the first at 0 s. All at 0 s if the file has no times.

    Raises ConfigError that names the file and the request.
    """
    for name, factor in (("scale", scale), ("stretch", stretch)):
        if not (math.isfinite(factor) and factor > 0):
            raise ConfigError(f"{name} must be a number above 0, not {factor}")
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            records = _json_lines(lines, path) if path.suffix in (".jsonl", ".json") else csv.DictReader(lines)
            rows = [_request(record, f"{path}, request {n}") for n, record in enumerate(islice(records, limit), 1)]
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise ConfigError(f"the trace {path} cannot be read: {exc}") from exc
    if not rows:
        raise ConfigError(f"the trace {path} holds no requests")
    rows.sort(key=lambda row: row.arrival_s)
    first = rows[0].arrival_s
    moved = (dataclasses.replace(row, arrival_s=row.arrival_s - first) for row in rows)
    return [row.scaled(scale=scale, stretch=stretch) for row in moved]


def poisson_arrivals(requests: Sequence[TraceRequest], *, rate: float, seed: int) -> list[TraceRequest]:
    """The same requests, coming at random at `rate` per second."""
    source = random.Random(seed)
    now = 0.0
    moved = []
    for request in requests:
        moved.append(dataclasses.replace(request, arrival_s=now))
        now += source.expovariate(rate)
    return moved


def normal_lengths(count: int, *, prompt_len: float, output_len: float, seed: int) -> list[TraceRequest]:
    """Requests with lengths Normal(mean, 0.3 mean), at least 1 token: FastGen's load (arXiv 2401.08671)."""
    source = random.Random(seed)
    return [
        TraceRequest(
            0.0,
            _length(source.gauss(prompt_len, 0.3 * prompt_len)),
            _length(source.gauss(output_len, 0.3 * output_len)),
        )
        for _ in range(count)
    ]


def prompt_token_ids(request: TraceRequest, *, name: str, seed: int) -> list[int]:
    """Its prompt as ids below 65,536: blocks with equal hash ids are equal everywhere, all else is `name`'s own."""
    ids: list[int] = []
    for hash_id in request.hash_ids[: math.ceil(request.prompt_len / request.block_len)]:
        ids += _block(f"{seed}/{hash_id}", request.block_len)
    if len(ids) < request.prompt_len:
        ids += _block(f"{seed}/own/{name}", request.prompt_len - len(ids))
    return ids[: request.prompt_len]


def _block(key: str, length: int) -> list[int]:
    # A hash instead of a random.Random, whose seeding alone costs ten times as much.
    ids = array("H", hashlib.shake_128(key.encode()).digest(2 * length))
    return ids.tolist()


def _length(tokens: float) -> int:
    return max(1, round(tokens))


def _json_lines(lines: Iterator[str], path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as exc:
                raise ConfigError(f"{path}, line {number} is not JSON: {exc}") from exc
            if not isinstance(record, dict):
                raise ConfigError(f"{path}, line {number} is not a JSON object")
            yield record


def _request(record: Mapping[str, Any], where: str) -> TraceRequest:
    for prompt_key, output_key, time_key, unit in _KINDS:
        if prompt_key in record and output_key in record:
            try:
                row = TraceRequest(
                    arrival_s=_seconds(record.get(time_key), unit),
                    prompt_len=int(record[prompt_key]),
                    output_len=int(record[output_key]),
                    hash_ids=tuple(int(hash_id) for hash_id in record.get("hash_ids") or ()),
                )
            except (ValueError, TypeError, OverflowError) as exc:
                raise ConfigError(f"{where}: {exc}") from exc
            if row.prompt_len < 0 or row.output_len < 0 or not math.isfinite(row.arrival_s):
                raise ConfigError(f"{where}: a length or time is out of range")
            return row
    raise ConfigError(f"{where}: no known columns; {', '.join(f'{kind[0]} and {kind[1]}' for kind in _KINDS)} are")


def _seconds(value: Any, unit: float) -> float:
    if value is None or value == "":
        return 0.0
    if isinstance(value, str) and ":" in value:
        when = datetime.fromisoformat(value)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()  # no clock change within a trace
    return float(value) * unit
