"""The loop behind every event stream: one write carries all events since the last write.

Each API brings a writer that formats its events; this module decides when they are written.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import closing

from ...engine.core.outputs import OutputDelta
from ..http.errors import Problem
from ..http.sse import EventStream
from ..jobs.job import Job
from ..jobs.signal import TimedWaits

PING = b": ping\n\n"
PING_S = 15.0
# Most events of a job in one write. A re-attached reader gets a long answer in slices, and other streams run between.
MAX_BATCH = 512


class StreamWriter:
    """Formats the events of a stream's jobs for one API. Each method may return no bytes."""

    response: type[EventStream] = EventStream
    ping = PING  # sent after PING_S of silence

    def begin(self) -> bytes:
        """Return the bytes before all events."""
        return b""

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        """Format the next events of one of the jobs; `event_id` is the first one's id."""
        raise NotImplementedError

    async def end(self) -> Sequence[bytes]:
        """Return the bytes after all jobs have ended. Raises a job's failure if only an error can follow."""
        raise NotImplementedError

    def error(self, problem: Problem) -> bytes:
        """Format a failure inside the stream."""
        raise NotImplementedError


def stream(
    jobs: Sequence[Job],
    writer: StreamWriter,
    *,
    first_id: int = 0,
    on_disconnect: Callable[[], None] = lambda: None,
    headers: Mapping[str, str] | None = None,
) -> EventStream:
    """Stream the events of jobs that share one `changed` signal, from `first_id` on."""
    source = chunks(jobs, writer, first_id=first_id)
    return writer.response(source, error_frame=writer.error, on_disconnect=on_disconnect, headers=headers)


async def chunks(jobs: Sequence[Job], writer: StreamWriter, *, first_id: int = 0) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of the stream, one write at a time."""
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
                    await asyncio.sleep(0)  # otherwise a reader that keeps up would hold the loop
            elif jobs[0].is_suspended:  # only kept jobs can be suspended, and each has a stream of its own
                return  # no end: readers reconnect to the next process
            elif jobs[-1].finished and all(job.finished for job in jobs):
                break
            elif not await waits.wait():
                yield writer.ping
    for job in jobs:
        job.was_read.set()
    for chunk in await writer.end():
        yield chunk
