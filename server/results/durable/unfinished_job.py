"""UnfinishedJob: a job that an earlier process left, rebuilt from its records on disk."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....engine.core.outputs import KnownOutput
from ....engine.serving.submitted_request import Resumed
from ...jobs.job import Job
from .journal import StoredJob
from .records import Event, JobRow, delta_of

_log = logging.getLogger("splitfuse.results")
MAX_CRASHES = 3  # crashes after which a job is not retried; its last try runs alone


@dataclass(frozen=True, slots=True)
class UnfinishedJob:
    """A job of an earlier process that has not ended."""

    kept: StoredJob
    row: JobRow
    request: dict[str, Any]  # the stored request
    resumed: Resumed
    is_damaged: bool = False  # changed on disk since it was written

    @property
    def has_told(self) -> bool:
        """True if a reader may have received events of the job."""
        return bool(self.kept.deltas)

    @property
    def is_suspect(self) -> bool:
        """True if the job may be the cause of crashes: it was running when two processes died."""
        return self.row.num_crashes >= MAX_CRASHES - 1


class BegunJob:
    """Collector of an unfinished job's records."""

    def __init__(
        self,
        row: JobRow,
        job: Job,
        request: dict[str, Any],
        arrival_time: float,
        *,
        is_damaged: bool = False,
    ) -> None:
        self.row = row
        self._is_damaged = is_damaged
        self._request = request
        self._seed = request["seed"]
        self._arrival_time = arrival_time
        self._kept = StoredJob(row.num, job, len(job.outputs), request["ttl_s"])
        self._forced_from: list[int | None] = [None for _ in job.outputs]
        self._first_token_times: list[float | None] = [None for _ in job.outputs]

    def take(self, event: Event, time_of: Callable[[float], float], *, written: float) -> None:
        """Add the next event, and the time of writing."""
        if self._is_damaged:
            return
        try:
            self._take(event, time_of, written=written)
        except Exception:  # whatever it holds, the other jobs go on
            _log.exception("results: an event of job %s… cannot be read", self.row.seq_id[:8])
            self._is_damaged = True

    def _take(self, event: Event, time_of: Callable[[float], float], *, written: float) -> None:
        delta = delta_of(event, request_id=self.row.seq_id, time_of=time_of)
        self._kept.deltas.append(delta)
        self._kept.num_left -= delta.finish_reason is not None
        self._forced_from[delta.index] = delta.forced_from
        if delta.token_ids and self._first_token_times[delta.index] is None:
            self._first_token_times[delta.index] = written
        self._kept.job.sink(delta)

    def unfinished(self, *, now: float) -> UnfinishedJob:
        """Return the job with all of its events."""
        outputs = tuple(
            KnownOutput(
                tuple(output.token_ids),
                self._forced_from[output.index],
                first_token_time=self._first_token_times[output.index],
                last_token_time=now if output.token_ids else None,
                has_ended=output.finish_reason is not None,
            )
            for output in self._kept.job.outputs
        )
        resumed = Resumed(self._seed, outputs, self._arrival_time, parent=self._request.get("parent"))
        return UnfinishedJob(self._kept, self.row, self._request, resumed, self._is_damaged)
