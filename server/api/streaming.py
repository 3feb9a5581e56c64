"""The loop behind every event stream: one write carries all events since the last write.

Each API brings a writer that formats its events; this module decides when they are written.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import closing

from ...engine.core.outputs import OutputDelta
from ..http.errors import Problem
from ..http.sse import ChunkWriter, EventStream
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
    events = JobEvents(jobs, writer, first_id=first_id)
    return writer.response(
        events.chunks(),
        error_frame=writer.error,
        on_disconnect=on_disconnect,
        headers=headers,
        use_writer=events.use_writer,
    )


class JobEvents:
    """Events of a stream's jobs as bytes, one write at a time.

    While the task of `chunks` waits, events go to the ChunkWriter, if there is one, in the next turn of the loop. So
    the task need not wake for each token: it wakes for the end, for a reader that has fallen behind, and for pings.
    """

    def __init__(self, jobs: Sequence[Job], writer: StreamWriter, *, first_id: int = 0) -> None:
        self._jobs, self._writer = jobs, writer
        self._positions = [first_id] * len(jobs)
        self._waits = TimedWaits(jobs[0].changed, PING_S)
        self._chunk_writer: ChunkWriter | None = None
        self._is_due = False  # `_write_now` is going to be called
        self._loop = asyncio.get_running_loop()

    def use_writer(self, writer: ChunkWriter) -> None:
        """Write events without waking the task from now on."""
        self._chunk_writer = writer

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the stream, one write at a time."""
        jobs, waits = self._jobs, self._waits
        if beginning := self._writer.begin():
            yield beginning
        with closing(waits):
            while True:
                chunk, num_events = self._take()
                if num_events:
                    if chunk:
                        yield chunk
                    if num_events >= MAX_BATCH:
                        await asyncio.sleep(0)  # otherwise a reader that keeps up would hold the loop
                elif jobs[0].is_suspended:  # only kept jobs can be suspended, and each has a stream of its own
                    return  # no end: readers reconnect to the next process
                elif jobs[-1].finished and all(job.finished for job in jobs):
                    break
                elif not await waits.wait(woken=self if self._chunk_writer else None):
                    yield self._writer.ping
        for job in jobs:
            job.was_read.set()
        for chunk in await self._writer.end():
            yield chunk

    def done(self) -> bool:
        """True if the signal need not wake this."""
        return self._is_due

    def set_result(self, result: bool, /) -> None:
        """Write in the next turn of the loop: the signal fires within the engine's step."""
        self._is_due = True
        self._loop.call_soon(self._write_now)

    def _write_now(self) -> None:
        """Write new events, or wake the task if more is to be done."""
        self._is_due = False
        waiter, writer = self._waits.waiter, self._chunk_writer
        if waiter is None or waiter.done() or writer is None:
            return
        if not writer.has_room or self._jobs[-1].ended.is_set():
            waiter.set_result(True)
            return
        try:
            chunk, num_events = self._take()
        except Exception as exc:
            waiter.set_exception(exc)
            return
        if chunk:
            writer.write_now(chunk)
            self._waits.restart(self._loop.time())
        if num_events >= MAX_BATCH:
            waiter.set_result(True)

    def _take(self) -> tuple[bytes, int]:
        """Format the next events of all jobs, MAX_BATCH of each at most. Returns their bytes and their number."""
        frames, num_events = [], 0
        for index, job in enumerate(self._jobs):
            position = self._positions[index]
            if deltas := job.events[position : position + MAX_BATCH]:
                frames.append(self._writer.write(index, position, deltas))
                self._positions[index] += len(deltas)
                num_events += len(deltas)
        return b"".join(frames), num_events
