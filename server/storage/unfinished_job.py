"""UnfinishedJob: a job that an earlier process left, made again from what is on disk of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...engine.core.outputs import KnownOutput
from ...engine.serving.submitted_request import Resumed
from ..jobs.job import Job
from .journal import KeptJob
from .records import Event, JobRow, delta_of
from .sealing import DamagedError, Seal

MAX_CRASHES = 3  # a job that was running at so many is not tried again; before the last time it is tried alone


@dataclass(frozen=True, slots=True)
class UnfinishedJob:
    """A job of an earlier process that has not ended."""

    kept: KeptJob
    row: JobRow
    request: dict[str, Any]  # as it was stored
    resumed: Resumed
    is_damaged: bool = False  # it was changed on disk

    @property
    def has_told(self) -> bool:
        """Whether a reader may have had something of it."""
        return bool(self.kept.deltas)

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what brings processes down: it was running when two died."""
        return self.row.num_crashes >= MAX_CRASHES - 1


class BegunJob:
    """Collects what is on disk of a job that has not ended."""

    def __init__(
        self,
        row: JobRow,
        job: Job,
        request: dict[str, Any],
        arrival_time: float,
        *,
        seal: Seal | None = None,
        is_damaged: bool = False,
    ) -> None:
        self.row = row
        self._is_damaged = is_damaged
        self._request = request
        self._arrival_time = arrival_time
        self._kept = KeptJob(row.num, job, len(job.outputs), request["ttl_s"], request.get("webhook"), seal=seal)
        self._forced_from: list[int | None] = [None for _ in job.outputs]
        self._first_token_times: list[float | None] = [None for _ in job.outputs]

    def take(self, item: Event | str, time_of: Callable[[float], float], *, written: float) -> None:
        """The next event, or several that are sealed, and when they were written."""
        if self._is_damaged:
            return
        try:
            events = self._opened(item)
        except DamagedError:
            self._is_damaged = True
            return
        for event in events:
            self._take(event, time_of, written=written)

    def _opened(self, item: Event | str) -> list[Event]:
        seal = self._kept.seal
        return [item] if seal is None else seal.open_events(len(self._kept.deltas), item)

    def _take(self, event: Event, time_of: Callable[[float], float], *, written: float) -> None:
        delta = delta_of(event, request_id=self.row.seq_id, time_of=time_of)
        self._kept.deltas.append(delta)
        self._kept.num_left -= delta.finish_reason is not None
        self._forced_from[delta.index] = delta.forced_from
        if delta.token_ids and self._first_token_times[delta.index] is None:
            self._first_token_times[delta.index] = written
        self._kept.job.sink(delta)

    def unfinished(self, *, now: float) -> UnfinishedJob:
        """The job with all of its events."""
        known = tuple(
            KnownOutput(
                tuple(output.token_ids),
                self._forced_from[output.index],
                first_token_time=self._first_token_times[output.index],
                last_token_time=now if output.token_ids else None,
                has_ended=output.finish_reason is not None,
            )
            for output in self._kept.job.outputs
        )
        resumed = Resumed(self._request["seed"], known, self._arrival_time)
        return UnfinishedJob(self._kept, self.row, self._request, resumed, self._is_damaged)
