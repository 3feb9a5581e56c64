"""Events of a waiting stream are written without its task, until the reader falls behind, a fault or the end."""

import asyncio
from collections.abc import Sequence

import pytest

from splitfuse.engine.core.outputs import OutputDelta, RequestMetrics
from splitfuse.server.api import streaming
from splitfuse.server.api.streaming import JobEvents, StreamWriter
from splitfuse.server.jobs.job import Job


class Lines(StreamWriter):
    """Writer of a line per event; fails at the text "fault"."""

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        if any(delta.text == "fault" for delta in deltas):
            raise ValueError("cannot be written")
        return b"".join(
            b"%d.%d %b\n" % (job_index, event_id + i, delta.text.encode()) for i, delta in enumerate(deltas)
        )

    async def end(self) -> Sequence[bytes]:
        return [b"end\n"]


class Socket:
    """ChunkWriter that remembers."""

    def __init__(self) -> None:
        self.has_room = True
        self.written: list[bytes] = []

    def write_now(self, data: bytes) -> None:
        self.written.append(data)

    async def write_chunk(self, data: bytes) -> None:
        raise AssertionError("the caller of `chunks` writes its chunks")


def delta(text: str, *, ends: bool = False) -> OutputDelta:
    metrics = RequestMetrics(0.0, 0.0, 0.0, 0.0, 1, 1, 0, 0) if ends else None
    return OutputDelta("s", 0, text, (1,), finish_reason="stop" if ends else None, metrics=metrics)


class Reader:
    """Stream of one job whose task is started, with the chunks that the task yields."""

    def __init__(self, num_jobs: int = 1) -> None:
        self.jobs = [Job("s", model="m") for _ in range(num_jobs)]
        for job in self.jobs[1:]:
            job.changed = self.jobs[0].changed
        self.socket, self.yielded = Socket(), list[bytes]()
        events = JobEvents(self.jobs, Lines())
        events.use_writer(self.socket)
        self.task = asyncio.create_task(self._read(events))

    async def _read(self, events: JobEvents) -> None:
        async for chunk in events.chunks():
            self.yielded.append(chunk)

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)


async def test_a_waiting_task_sleeps_until_the_end() -> None:
    reader = Reader(num_jobs=2)
    await reader.settle()
    for i in range(5):
        reader.jobs[i % 2].sink(delta(f"{i}"))
        await reader.settle()
    assert (reader.socket.written, reader.yielded) == ([b"0.0 0\n", b"1.0 1\n", b"0.1 2\n", b"1.1 3\n", b"0.2 4\n"], [])
    for job in reader.jobs:
        job.sink(delta("last", ends=True))
    await reader.task
    assert reader.yielded == [b"0.3 last\n1.2 last\n", b"end\n"]
    assert all(job.was_read.is_set() for job in reader.jobs)


async def test_events_of_one_turn_are_one_write() -> None:
    reader = Reader()
    await reader.settle()
    for text in "abc":
        reader.jobs[0].sink(delta(text))
    await reader.settle()
    assert reader.socket.written == [b"0.0 a\n0.1 b\n0.2 c\n"]
    reader.task.cancel()


async def test_a_reader_that_has_fallen_behind_is_the_task_s() -> None:
    reader = Reader()
    await reader.settle()
    reader.socket.has_room = False
    reader.jobs[0].sink(delta("a"))
    await reader.settle()
    assert (reader.socket.written, reader.yielded) == ([], [b"0.0 a\n"])
    reader.task.cancel()


async def test_a_fault_of_the_writer_ends_the_stream_with_it() -> None:
    reader = Reader()
    await reader.settle()
    reader.jobs[0].sink(delta("fault"))
    with pytest.raises(ValueError, match="cannot be written"):
        await reader.task


async def test_a_long_answer_comes_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MAX_BATCH", 2)
    reader = Reader()
    await reader.settle()
    for text in "abcde":
        reader.jobs[0].sink(delta(text))
    await reader.settle()
    assert b"".join(reader.socket.written + reader.yielded) == b"0.0 a\n0.1 b\n0.2 c\n0.3 d\n0.4 e\n"
    assert len(reader.socket.written + reader.yielded) == 3
    reader.task.cancel()


async def test_pings_count_from_the_last_write(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, now = asyncio.get_running_loop(), [100.0]
    monkeypatch.setattr(loop, "time", lambda: now[0])
    reader = Reader()
    await reader.settle()
    now[0] = 110.0
    reader.jobs[0].sink(delta("a"))
    await reader.settle()
    for now[0] in (115.0, 124.0):
        await reader.settle()
        assert reader.yielded == []
    now[0] = 125.0
    await reader.settle()
    assert reader.yielded == [streaming.PING]
    reader.task.cancel()


async def test_a_stream_that_was_left_writes_nothing() -> None:
    reader = Reader()
    await reader.settle()
    reader.jobs[0].sink(delta("a"))  # in the same turn as the end of the task
    reader.task.cancel()
    await reader.settle()
    reader.jobs[0].sink(delta("b"))
    await reader.settle()
    assert reader.socket.written == []
