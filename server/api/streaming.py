"""The one loop behind every event stream: all that has come since the last write goes out in one write.

An API brings a writer: what its events look like stands there, when they are written stands here.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import closing

from ...engine.core.outputs import OutputDelta
from ...engine.errors import InvalidRequestError
from ..http.errors import Problem
from ..http.sse import EventStream
from ..jobs.job import Job
from ..jobs.signal import TimedWaits

PING = b": ping\n\n"
PING_S = 15.0
# Most events of a job in one write: a re-attached reader gets a long answer in slices, other streams run in between.
MAX_BATCH = 512


class StreamWriter:
    """Writes the events of a stream's jobs as an API wants them. Any of its bytes may be empty."""

    response: type[EventStream] = EventStream
    ping = PING  # when there has been nothing to write for PING_S

    def begin(self) -> bytes:
        """What comes before all events."""
        return b""

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        """The next events of one of the jobs; `event_id` is the id of the first."""
        raise NotImplementedError

    async def end(self) -> Sequence[bytes]:
        """What comes once every job has ended. Raises what made a job fail if only an error can follow."""
        raise NotImplementedError

    def error(self, problem: Problem) -> bytes:
        """A failure inside the stream."""
        raise NotImplementedError


def stream(
    jobs: Sequence[Job],
    writer: StreamWriter,
    *,
    first_id: int = 0,
    on_disconnect: Callable[[], None] = lambda: None,
    headers: Mapping[str, str] | None = None,
) -> EventStream:
    """The events of jobs that share one `changed` signal, from this id on."""
    source = chunks(jobs, writer, first_id=first_id)
    return writer.response(source, error_frame=writer.error, on_disconnect=on_disconnect, headers=headers)


def event_id(text: str, *, name: str) -> int:
    """The id of the event after which a reader wants to go on. Raises InvalidRequestError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequestError(f"{name} must be the id of an event, an integer of at least 0", param=name)
    return int(text)


async def chunks(jobs: Sequence[Job], writer: StreamWriter, *, first_id: int = 0) -> AsyncGenerator[bytes, None]:
    """What the stream writes, a chunk at a time."""
    if beginning := writer.begin():
        yield beginning
    positions = [first_id] * len(jobs)
    with closing(TimedWaits(jobs[0].changed, PING_S)) as waits:
        while True:
            frames, num_events = [], 0
            for index, job in enumerate(jobs):
                if deltas := job.events[positions[index] : positions[index] + MAX_BATCH]:
                    frames.append(writer.write(index, positions[index], deltas))
                    positions[index] += len(deltas)
                    num_events += len(deltas)
            if frames:
                if chunk := b"".join(frames):
                    yield chunk
                if num_events >= MAX_BATCH:
                    await asyncio.sleep(0)  # a reader that keeps up would keep the loop
            elif jobs[0].is_suspended:  # only kept jobs are, and those have streams of their own
                return  # without an end: readers come back to the next process
            elif jobs[-1].finished and all(job.finished for job in jobs):
                break
            elif not await waits.wait():
                yield writer.ping
    for job in jobs:
        job.was_read.set()
    for chunk in await writer.end():
        yield chunk
