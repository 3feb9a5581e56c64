"""StoredJobs: makes jobs of rows and segments of a store. Knows neither the index nor the journal."""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ....engine.core.outputs import OutputDelta
from ...jobs.idempotency import IdempotencyKey
from ...jobs.job import Attachment, Job
from ...jobs.kept_request import KeptKind
from .records import JobRow, Segment, delta_of, load_result, load_segment
from .sealing import DamagedError, Seal, Sealing
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


class StoredJobs:
    """Reader of rows. `ttl`: seconds that a job is kept after its end."""

    def __init__(
        self,
        kinds: Mapping[str, KeptKind],
        *,
        ttl: float,
        sealing: Sealing | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.kinds = kinds
        self.sealing = sealing
        self.wall_clock = wall_clock
        self.last_deleted = 0  # highest job number among deleted jobs whose events are still in segments
        self._ttl = ttl
        self._clock = clock

    def finished(self, row: JobRow) -> Job | None:
        """Return the job of a row; None if it has not ended, or has expired."""
        if row.result is None or self._is_expired(row):
            return None
        try:
            request, result = self._text(row, "request")[0], self._text(row, "result")[0]
        except DamagedError as exc:
            _log.error("results: job %s…: error id %s: %s", row.seq_id[:8], exc.error_id, exc)
            job = self._job_of(row, _DAMAGED_REQUEST)
            deltas = [OutputDelta(row.seq_id, 0, "", (), None, "error", None, None, exc)]
        else:
            job = self._job_of(row, json.loads(request))
            deltas = [delta_of(event, request_id=row.seq_id) for event in load_result(result)]
        job.ttl_s = None if row.expires is None else row.expires - self.wall_clock()
        for delta in deltas:
            job.sink(delta)
        return job

    def unfinished(self, rows: Iterable[JobRow], segments: Callable[[int], Iterable[bytes]]) -> list[UnfinishedJob]:
        """Return unfinished jobs with their events."""
        begun = {row.num: self._begun(row) for row in rows}
        num_damaged = 0
        first = min((job.row.first_segment for job in begun.values()), default=None)
        for body in () if first is None else segments(first):
            try:
                segment = load_segment(body)
            except ValueError:
                num_damaged += 1
                continue
            time_of = self._translation(segment)
            for num, event in segment.events:
                if num in begun:
                    begun[num].take(event, time_of, written=time_of(segment.monotonic))
                else:
                    self.last_deleted = max(self.last_deleted, num)
        if num_damaged:
            _log.error("results: %d damaged segments; the jobs in them may go on with less than they had", num_damaged)
        return [job.unfinished(now=self._clock()) for job in begun.values()]

    def _text(self, row: JobRow, name: str) -> tuple[str, Seal | None]:
        """Return a text of a row, and the job's key where the store is encrypted. Raises DamagedError."""
        text = getattr(row, name)
        return (text, None) if self.sealing is None else self.sealing.open_text(row.owner, row.seq_id, name, text)

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
        arrival_time = self._clock() - max(0.0, self.wall_clock() - row.created)
        try:
            text, seal = self._text(row, "request")
        except DamagedError:
            assert self.sealing is not None
            request = {**_DAMAGED_REQUEST, "ttl_s": self._ttl}
            seal = self.sealing.new_seal(row.owner, row.seq_id)  # for its end
            return BegunJob(row, self._job_of(row, request), request, arrival_time, seal=seal, is_damaged=True)
        request = json.loads(text)
        return BegunJob(row, self._job_of(row, request), request, arrival_time, seal=seal)
