"""Native event stream: `token` events, numbered from 0, then `done` with the result, or `error`."""

from collections.abc import Sequence

from ....engine.core.outputs import OutputDelta
from ...http.errors import Problem, describe
from ...http.json_response import dumps
from ...http.json_writer import JsonWriter, SharedBody
from ...http.sse import frame
from ...jobs.job import Job
from ..streaming import StreamWriter
from .response import event_json, finished_result


class NativeStreamWriter(StreamWriter):
    """Events of one job. A reader that resumes after the last event gets nothing more."""

    def __init__(self, job: Job, json: JsonWriter, *, first_id: int = 0) -> None:
        self._job = job
        self._json = json
        self._first_id = first_id
        self._result: SharedBody | None = None  # held while it is being sent

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        frames = [frame(event_json(delta), event="token", event_id=event_id + i) for i, delta in enumerate(deltas)]
        return "".join(frames).encode("ascii")

    async def end(self) -> Sequence[bytes]:
        num_events = len(self._job.events)
        if self._first_id > num_events:
            return []
        failure = self._job.failure() if self._job.status == "failed" else None
        if failure is not None:
            error = dumps(describe(failure).envelope())
            return [frame(error, event="error", event_id=num_events).encode("ascii")]
        head, tail = frame("\0", event="done", event_id=num_events).encode("ascii").split(b"\0")
        self._result = await finished_result(self._job, self._json)
        if len(self._result) == 1:
            return [b"".join([head, *self._result, tail])]
        return [head, *self._result, tail]

    def error(self, problem: Problem) -> bytes:
        return frame(dumps(problem.envelope()), event="error").encode("ascii")
