"""Standard output that is not read, or cannot be written, holds up no caller."""

import contextlib
import os
import sys

import pytest

from splitfuse.server.process.queued_output import QueuedStream, num_dropped_lines, queued_output

LINE = "x" * 99 + "\n"


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


def read_all(reader):
    return b"".join(iter(lambda: os.read(reader, 65536), b"")).decode()


def fill(pipe_end):
    """Fill a pipe until a further byte would block."""
    os.set_blocking(pipe_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe_end, b"." * 4096)
    os.set_blocking(pipe_end, True)


def test_a_pipe_that_is_not_read_drops_what_does_not_fit(pipe):
    reader, writer = pipe
    fill(writer)
    stream = QueuedStream(writer, max_chars=10 * len(LINE))
    for _ in range(15):
        stream.write(LINE)
    assert stream.num_dropped == 5
    assert not stream.wait_written(0.01)
    while not stream.wait_written(0.01):
        os.read(reader, 65536)
    stream.write("the end\n")
    assert stream.wait_written(10)
    assert stream.num_dropped == 5
    stream.end()
    os.close(writer)
    assert read_all(reader).endswith("the end\n")


def test_lines_arrive_whole_and_in_order(pipe):
    reader, writer = pipe
    stream = QueuedStream(writer)
    print("step", 1, file=stream)
    print("50 %", end="\r", file=stream, flush=True)  # a progress bar
    print("begun", end="", file=stream)
    print(" and ended: \udc80", file=stream)
    assert stream.wait_written(10)
    os.close(writer)
    assert read_all(reader) == "step 1\n50 %\rbegun and ended: \\udc80\n"
    assert stream.num_dropped == 0
    stream.end()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_drops_and_counts():
    full = os.open("/dev/full", os.O_WRONLY)
    stream = QueuedStream(full)
    stream.write("one\ntwo\n")
    assert stream.wait_written(10)
    assert stream.num_dropped == 2
    stream.end()
    os.close(full)


def test_the_streams_are_queued_inside_and_written_at_the_end(capfd):
    before = sys.stdout, sys.stderr
    with queued_output():
        print("out")
        print("err", file=sys.stderr)
        assert isinstance(sys.stdout, QueuedStream)
        assert num_dropped_lines() == 0
    assert (sys.stdout, sys.stderr) == before
    assert capfd.readouterr() == ("out\n", "err\n")
