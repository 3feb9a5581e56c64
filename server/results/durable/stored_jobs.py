"""StoredJobs: makes jobs of rows and segments of a store. Knows neither the index nor the journal."""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ....engine.core.outputs import OutputDelta
from ....engine.serving.request_output import CompletionOutput
from ...jobs.idempotency import IdempotencyKey
from ...jobs.job import Attachment, Job
from ...jobs.saved_request import SavedKind
from .checksum import DamagedError
from .records import JobRow, Segment, delta_of, load_result, load_segment
from .store import UnreadableError
from .unfinished_job import BegunJob, UnfinishedJob

_log = logging.getLogger("splitfuse.results")
# Stands in for a request that cannot be read: its job only fails.
_DAMAGED_REQUEST: dict[str, Any] = {
    "kind": None,
    "attachment": None,
    "prompt_token_ids": [],
    "seed": 0,
    "model": "",
    "num_outputs": 1,
    "stream_interval": 1,
}
_LAST_TIME = 1e11  # the year 5138


class _StoredReceipt(NamedTuple):
    """ReceiptMaker of an answer that came from the store with its receipt."""

    receipt: dict[str, Any] | None

    def of(self, job: Job, outputs: Sequence[CompletionOutput]) -> dict[str, Any] | None:
        """Return the stored receipt."""
        return self.receipt


class StoredJobs:
    """Reader of rows. `ttl`: seconds that a job is kept after its end."""

    def __init__(
        self,
        kinds: Mapping[str, SavedKind],
        *,
        ttl: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.kinds = kinds
        self.wall_clock = wall_clock
        self.last_deleted = 0  # highest job number among deleted jobs whose events are still in segments
        self._ttl = ttl
        self._clock = clock

    def finished(self, row: JobRow) -> Job | None:
        """Return the job of a row; None if it has not ended, or has expired."""
        try:
            if not row.is_whole:
                raise DamagedError
            return None if row.result is None or self._is_expired(row) else self._ended(row)
        except DamagedError as exc:
            return self.damaged(row, exc)
        except Exception:  # whatever it holds, its reader gets an answer, and others theirs
            _log.exception("results: job %s… cannot be read", str(row.seq_id)[:8])
            return self.damaged(row, DamagedError())

    def damaged(self, row: JobRow, error: DamagedError) -> Job:
        """Return the job of a row that cannot be read: it has failed."""
        _log.error("results: job %s…: error id %s: %s", str(row.seq_id)[:8], error.error_id, error)
        job = self._job_of(_plausible(row), _DAMAGED_REQUEST)
        job.sink(OutputDelta(job.seq_id, 0, "", (), None, "error", None, None, error))
        return job

    def _ended(self, row: JobRow) -> Job:
        """Return the job of a row that holds its end. Raises DamagedError, or what reading its texts raises."""
        job = self._job_of(row, json.loads(row.request))
        events, more = load_result(row.result or "[]")
        for event in events:
            job.sink(delta_of(event, request_id=row.seq_id))
        if "weights" in more:
            job.versions.note(**more["weights"])
        if "receipt" in more:
            job.receipt = _StoredReceipt(more["receipt"])
        if not job.finished:
            raise DamagedError
        job.ttl_s = None if row.expires is None else row.expires - self.wall_clock()
        return job

    def request_of(self, row: JobRow) -> dict[str, Any]:
        """Return the stored request of a row."""
        request: dict[str, Any] = json.loads(row.request)
        return request

    def unfinished(self, rows: Iterable[JobRow], segments: Callable[[int], Iterable[bytes]]) -> list[UnfinishedJob]:
        """Return unfinished jobs with their events."""
        begun = {row.num: self._begun(row) for row in rows}
        first = min((job.row.first_segment for job in begun.values()), default=None)
        try:
            for body in () if first is None else segments(first):
                self._take(load_segment(body), begun)
        except (UnreadableError, ValueError) as exc:  # without its events the later ones would have a gap
            _log.error("results: a segment is damaged (%s); jobs go on from what came before it", exc)
        return [job.unfinished(now=self._clock()) for job in begun.values()]

    def _take(self, segment: Segment, begun: Mapping[int, BegunJob]) -> None:
        time_of = self._translation(segment)
        for num, event in segment.events:
            if num in begun:
                begun[num].take(event, time_of, written=time_of(segment.monotonic))
            else:
                self.last_deleted = max(self.last_deleted, num)

    def _is_expired(self, row: JobRow) -> bool:
        return row.expires is not None and row.expires <= self.wall_clock()

    def _job_of(self, row: JobRow, request: Mapping[str, Any]) -> Job:
        key, body = row.idempotency_key, row.body_digest
        job = Job(
            row.seq_id,
            model=request["model"],
            num_outputs=request["num_outputs"],
            owner=row.owner,
            stream_interval=request["stream_interval"],
            created=row.created,
            attempt=row.num_attempts,
            idempotency_key=None if key is None or body is None else IdempotencyKey(key, body),
            ttl_s=request.get("ttl_s"),
        )
        job.num_prompt_tokens = len(request["prompt_token_ids"])
        if (attachment := self._attachment(request)) is not None:
            job.attach(attachment)
        return job

    def _attachment(self, request: Mapping[str, Any]) -> Attachment | None:
        try:
            return self.kinds[request["kind"]].attachment(request["attachment"])
        except (KeyError, TypeError, ValueError) as exc:  # another version wrote it, in a form of its own
            _log.warning("results: what the API kept with a job cannot be read (%r)", exc)
            return None

    def _translation(self, segment: Segment) -> Callable[[float], float]:
        """Translate the clock of the process that wrote a segment to this one's; never into the future."""
        now = self._clock()
        shift = segment.wall - segment.monotonic - (self.wall_clock() - now)
        return lambda time: min(time + shift, now)

    def _begun(self, row: JobRow) -> BegunJob:
        arrival_time = self._clock() - max(0.0, self.wall_clock() - _plausible(row).created)
        try:
            if not row.is_whole:
                raise DamagedError
            request = self.request_of(row)
            return BegunJob(row, self._job_of(row, request), request, arrival_time)
        except Exception as exc:  # whatever it holds, the other jobs go on
            if not isinstance(exc, DamagedError):
                _log.exception("results: job %s… cannot be read", str(row.seq_id)[:8])
        request, row = {**_DAMAGED_REQUEST, "ttl_s": self._ttl}, _plausible(row)
        return BegunJob(row, self._job_of(row, request), request, arrival_time, is_damaged=True)


def _plausible(row: JobRow) -> JobRow:
    """Return a damaged row with values of the right types."""
    is_time = isinstance(row.created, int | float) and 0 <= row.created < _LAST_TIME
    return JobRow(
        num=row.num,
        seq_id=str(row.seq_id).encode(errors="replace").decode(),
        owner=str(row.owner),
        created=row.created if is_time else 0.0,
        request="",
        first_segment=row.first_segment if isinstance(row.first_segment, int) else 1,
        num_attempts=row.num_attempts if isinstance(row.num_attempts, int) else 1,
        num_crashes=row.num_crashes if isinstance(row.num_crashes, int) else 0,
    )
