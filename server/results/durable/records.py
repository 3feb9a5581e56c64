"""Records of a job, and the JSON form of its events, which is readable without this program.

    an event:     [index, "text", [ids]] or [index, "text", [ids], {rarer fields}]
    a segment:    [wall time, monotonic time, [[job, event], …]], all events between two commits, after a checksum
    a result:     [event, …], all events of a job that has ended, and {"weights": …, "receipt": …} if these are known

Times in rows are wall clock seconds. Times in events are of the writing process's monotonic clock; the segment's two
times translate them. In a result only their differences have a meaning.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from ....engine.core.outputs import OutputDelta, PromptLogprobs, RequestMetrics, TokenLogprobs
from ....engine.errors import ConstraintError, RequestFailedError
from ....engine.extension import has_extra, load_extra
from .checksum import checksum, is_whole

Event = Sequence[Any]
_CHECKSUM_BYTES = 4
# Events encoded at once: json.dumps holds the interpreter, 0.7 us for a plain event and 30 us for one with 20 logprobs.
_EVENTS_AT_ONCE = 128
_NUM_TIMES = 4  # the leading fields of RequestMetrics that are times
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as the store holds it. `request` suffices to resume it; `result` is its events once it has ended.

    `is_running`: a process has begun the job. `num_crashes`: processes that died while running it.
    """

    num: int
    seq_id: str
    owner: str
    created: float
    request: str
    first_segment: int  # lowest segment that can have its events
    is_running: bool = True
    num_attempts: int = 1
    num_crashes: int = 0
    status: str | None = None  # completed, failed or cancelled; None: not ended
    finished: float | None = None
    expires: float | None = None
    result: str | None = None
    idempotency_key: bytes | None = None  # SHA-256 of the key
    body_digest: bytes | None = None  # digest of the body that came with the key
    # Checksums of what never changes, of the request, and of the end; None in rows of earlier versions.
    row_sum: int | None = field(default=None, compare=False)
    request_sum: int | None = field(default=None, compare=False)
    result_sum: int | None = field(default=None, compare=False)

    def summed(self) -> "JobRow":
        """Return the row of a new job with its checksums."""
        return replace(self, row_sum=checksum(*self._fixed), request_sum=checksum(self.num, self.request))

    @property
    def is_whole(self) -> bool:
        """False if the row was changed on disk."""
        return (
            is_whole(self.row_sum, *self._fixed)
            and is_whole(self.request_sum, self.num, self.request)
            and is_whole(self.result_sum, *self._end)
            and (self.status is None) == (self.result is None)
            and isinstance(self.created, int | float)
            and isinstance(self.expires, int | float | None)
        )

    @property
    def _fixed(self) -> Sequence[object]:
        return self.num, self.seq_id, self.owner, self.created, self.idempotency_key, self.body_digest

    @property
    def _end(self) -> Sequence[object]:
        return self.num, self.num_attempts, self.status, self.finished, self.expires, self.result


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a job."""

    num: int
    status: str
    finished: float
    expires: float
    result: str
    num_attempts: int = 1  # processes that have run the job

    @property
    def result_sum(self) -> int:
        """Checksum of the end, as in its JobRow."""
        return checksum(self.num, self.num_attempts, self.status, self.finished, self.expires, self.result)


class Segment(NamedTuple):
    """Events of all jobs since the previous segment, with the time of writing by both clocks of the process."""

    wall: float
    monotonic: float
    events: list[tuple[int, Event]]


@dataclass(slots=True)
class Changes:
    """Changes that one transaction writes."""

    accepted: list[JobRow] = field(default_factory=list)
    segment: tuple[int, bytes] | None = None
    endings: list[Ending] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)  # an earlier process's jobs that continue here
    deleted: list[str] = field(default_factory=list)  # seq_ids
    renewed: list[tuple[int, str]] = field(default_factory=list)  # jobs and their requests, rewritten for another model
    probes: bool = False  # write something, to find out if writing works

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) for item in fields(self))


def event_of(delta: OutputDelta) -> Event:
    """Convert a delta to its stored event."""
    more: dict[str, Any] = {}
    if delta.logprobs is not None:
        more["logprobs"] = [(item.token_id, item.logprob, item.rank, item.top) for item in delta.logprobs]
    if delta.prompt_logprobs is not None:
        scores = delta.prompt_logprobs
        more["prompt_logprobs"] = [scores.num_top, scores.to_lists()]
    if delta.forced_from is not None:
        more["forced_from"] = delta.forced_from
    if delta.finish_reason is not None:
        more["finish"] = [delta.finish_reason, delta.stop_reason]
        more["metrics"] = None if delta.metrics is None else _metrics_of(delta.metrics)
        if (error := delta.error) is not None:
            more["error"] = [str(error), error.error_id, getattr(error, "param", None), error.code]
    event = (delta.index, delta.text, delta.token_ids)
    return (*event, more) if more else event


def delta_of(event: Event, *, request_id: str, time_of: Callable[[float], float] = float) -> OutputDelta:
    """Inverse of `event_of`. `time_of` translates the event's times."""
    index, text, token_ids, *rest = event
    delta = OutputDelta(request_id, index, text, tuple(token_ids))
    if not rest:
        return delta
    more = rest[0]
    reason, stop_reason = more.get("finish", (None, None))
    return replace(
        delta,
        logprobs=None if "logprobs" not in more else tuple(map(_logprobs_of, more["logprobs"])),
        prompt_logprobs=None if "prompt_logprobs" not in more else PromptLogprobs.from_lists(*more["prompt_logprobs"]),
        forced_from=more.get("forced_from"),
        finish_reason=reason,
        stop_reason=stop_reason,
        metrics=None if more.get("metrics") is None else _metrics_at(more["metrics"], time_of),
        error=None if "error" not in more else _error_of(*more["error"]),
    )


def dump_segment(events: Sequence[tuple[int, Event]], *, wall: float, monotonic: float) -> bytes:
    """Serialise a segment that is written at this time."""
    text = _encode([wall, monotonic, events]).encode()
    return zlib.crc32(text).to_bytes(_CHECKSUM_BYTES, "big") + text


def load_segment(body: bytes) -> Segment:
    """Parse a segment. Raises ValueError if it is damaged."""
    text = body[_CHECKSUM_BYTES:]
    if zlib.crc32(text).to_bytes(_CHECKSUM_BYTES, "big") != body[:_CHECKSUM_BYTES]:
        raise ValueError("a segment's checksum is wrong")
    return Segment(*json.loads(text))


def dump_result(deltas: Sequence[OutputDelta], more: Mapping[str, Any] | None = None) -> str:
    """Serialise all events of a job, and what else is kept of its answer."""
    last = [_encode(more)] if more else []
    return "[" + ",".join([*_result_parts(deltas), *last]) + "]"


def load_result(text: str) -> tuple[list[Event], dict[str, Any]]:
    """Parse the events of a job that has ended, and what else is kept of its answer."""
    events: list[Any] = json.loads(text)
    more = events.pop() if events and isinstance(events[-1], dict) else {}
    return events, more


def _result_parts(deltas: Sequence[OutputDelta]) -> Iterator[str]:
    for first in range(0, len(deltas), _EVENTS_AT_ONCE):
        yield _encode(list(map(event_of, deltas[first : first + _EVENTS_AT_ONCE])))[1:-1]


def _logprobs_of(item: Sequence[Any]) -> TokenLogprobs:
    token_id, logprob, rank, top = item
    return TokenLogprobs(token_id, logprob, tuple((top_id, value) for top_id, value in top), rank)


def _metrics_of(metrics: RequestMetrics) -> list[Any]:
    return [getattr(metrics, name) for name in RequestMetrics.__slots__]


def _metrics_at(values: Sequence[Any], time_of: Callable[[float], float]) -> RequestMetrics:
    times = [None if time is None else time_of(time) for time in values[:_NUM_TIMES]]
    metrics = RequestMetrics(*times, *values[_NUM_TIMES:])  # type: ignore[arg-type]  # types as written
    if metrics.history is None or not has_extra("inspection"):  # its values stay as they are: nobody reads them
        return metrics
    history = load_extra("inspection.history", needed_for="histories").History
    return replace(metrics, history=history.read(values[-1]))


def _error_of(message: str, error_id: str, param: str | None, code: str | None) -> RequestFailedError:
    if param is None:
        return RequestFailedError(message, error_id=error_id, code=code)
    return ConstraintError(message, error_id=error_id, param=param)
