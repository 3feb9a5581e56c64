"""Batch: the state of a batch, without its lines. Each change creates a new value."""

import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ..durable.batch_rows import BatchRow
from ..durable.checksum import DamagedError

_log = logging.getLogger("splitfuse.batches")
ID_PREFIX = "batch_"
OVER = ("completed", "failed", "expired", "cancelled")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """State of a batch. `times` maps the name of each state to the wall clock seconds when it began."""

    batch_id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created: float
    deadline: float
    metadata: Mapping[str, str] | None
    files_expire_after: float  # seconds after the batch is over
    status: str = "validating"
    times: Mapping[str, float] = field(default_factory=dict)
    errors: Sequence[Mapping[str, Any]] = ()  # reasons for the failure
    total: int = 0  # number of lines
    completed: int = 0  # lines; counted when the batch is over, like `failed`
    failed: int = 0
    unanswered: int = 0  # lines among `failed` that were cancelled or expired
    output_file_id: str | None = None
    error_file_id: str | None = None
    # Values of sampling fields that lines lack; a version without them sampled neutrally.
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """True if nothing will change any more."""
        return self.status in OVER

    def entered(self, status: str, now: float, **changed: Any) -> Self:
        """Return the batch in another state from now on."""
        return dataclasses.replace(self, status=status, times={**self.times, status: now}, **changed)

    def to_row(self, *, expires: float) -> BatchRow:
        """Convert the batch to its stored row."""
        body = json.dumps(dataclasses.asdict(self), separators=(",", ":"))
        return BatchRow(self.batch_id, self.owner, self.created, expires, body, is_over=self.is_over)

    @classmethod
    def from_row(cls, row: BatchRow) -> Self:
        """Inverse of `to_row`. Raises DamagedError."""
        try:
            return cls(**json.loads(row.body))
        except (TypeError, ValueError) as exc:
            raise DamagedError from exc

    @classmethod
    def from_rows(cls, rows: Iterable[BatchRow]) -> Iterator[Self]:
        """Convert many rows. Damaged rows are logged and left out."""
        for row in rows:
            try:
                yield cls.from_row(row)
            except DamagedError as exc:
                _log.error("batches: %s…: error id %s: %s", str(row.batch_id)[:12], exc.error_id, exc)


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    """A client's request for a batch."""

    endpoint: str
    input_file_id: str
    completion_window: str
    window_s: float
    metadata: Mapping[str, str] | None
    files_expire_after: float
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def begun(self, batch_id: str, owner: str, now: float) -> Batch:
        """Create the batch, which begins now."""
        return Batch(
            batch_id=batch_id,
            owner=owner,
            endpoint=self.endpoint,
            input_file_id=self.input_file_id,
            completion_window=self.completion_window,
            created=now,
            deadline=now + self.window_s,
            metadata=self.metadata,
            files_expire_after=self.files_expire_after,
            defaults=self.defaults,
        )
