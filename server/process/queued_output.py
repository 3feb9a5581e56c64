"""Standard output and standard error that never block a writer.

A pipe whose reader has stopped blocks the thread that writes to it; on the event loop that would freeze the server.
Here each stream has a thread that writes. Lines that do not fit into its queue, or cannot be written, are dropped and
counted. The module is imported before signals are handled, so it imports nothing that takes time.

logging's QueueHandler would serve the log alone, without prints, warnings and tracebacks. It takes twice the CPU time
(18 us a line, not 10). A full queue makes it write a traceback to standard error in the caller's thread, which blocks
there, and QueueListener.stop waits without a limit.
"""

import contextlib
import io
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import TextIO

MAX_CHARS = 2**20  # in a stream's queue: about 10,000 lines
FLUSH_S = 1.0  # longest wait for a stream at the end of the process


class QueuedStream(io.TextIOBase):
    """Text stream over a file descriptor; `write` and `flush` never wait. `num_dropped` counts lines."""

    def __init__(self, fd: int, *, max_chars: int = MAX_CHARS) -> None:
        self.num_dropped = 0
        self._fd = fd
        self._max_chars = max_chars
        self._begun = ""  # line without its end
        self._texts: deque[str] = deque()
        self._num_chars = 0  # in `_texts` and in the text that the thread is writing
        self._is_closing = False
        self._changed = threading.Condition()
        threading.Thread(target=self._write_out, name="splitfuse-output", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has an attribute
        """Name of the encoding: always UTF-8."""
        return "utf-8"

    def fileno(self) -> int:
        """Return the file descriptor under the stream."""
        return self._fd

    def isatty(self) -> bool:
        """Return True if the file descriptor is a terminal."""
        return os.isatty(self._fd)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Queue whole lines; hold the beginning of a line until its end or a `flush` comes."""
        with self._changed:
            lines, newline, self._begun = (self._begun + text).rpartition("\n")
            self._queue(lines + newline)
        return len(text)

    def flush(self) -> None:
        """Queue a line that has begun, such as a progress bar's."""
        with self._changed:
            text, self._begun = self._begun, ""
            self._queue(text)

    def wait_written(self, timeout: float) -> bool:
        """Return True if the queue has been written within `timeout` seconds."""
        self.flush()
        with self._changed:
            return self._changed.wait_for(lambda: not self._num_chars, timeout)

    def end(self) -> None:
        """End the thread when the queue is empty."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def _queue(self, text: str) -> None:
        if self._num_chars + len(text) > self._max_chars:
            self.num_dropped += text.count("\n")
        elif text:
            self._texts.append(text)
            self._num_chars += len(text)
            self._changed.notify_all()

    def _write_out(self) -> None:
        while text := self._next():
            num_lost = _write_all(self._fd, text)
            with self._changed:
                self._num_chars -= len(text)
                self.num_dropped += num_lost
                self._changed.notify_all()

    def _next(self) -> str:
        with self._changed:
            self._changed.wait_for(lambda: self._texts or self._is_closing)
            text = "".join(self._texts)
            self._texts.clear()
            return text


@contextlib.contextmanager
def queued_output() -> Iterator[None]:
    """Make sys.stdout and sys.stderr QueuedStreams. At the end wait FLUSH_S for each of them."""
    _open_standard_fds()
    out, err = QueuedStream(_fd(sys.stdout, 1)), QueuedStream(_fd(sys.stderr, 2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield
        finally:
            wait_written()
            out.end()
            err.end()


def wait_written() -> None:
    """Wait until standard output and standard error have been written, at most FLUSH_S for each of them."""
    for stream in _queued_streams():
        stream.wait_written(FLUSH_S)


def num_dropped_lines() -> int:
    """Return the number of lines that both streams have dropped."""
    return sum(stream.num_dropped for stream in _queued_streams())


def _queued_streams() -> list[QueuedStream]:
    return [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, QueuedStream)]


def _write_all(fd: int, text: str) -> int:
    """Write the text. Returns the number of lines that were lost."""
    data = text.encode("utf-8", "backslashreplace")
    with contextlib.suppress(OSError):  # a full disk, or the reader has gone
        while data:
            data = data[os.write(fd, data) :]
    return data.count(b"\n")


def _open_standard_fds() -> None:
    """Open descriptors 0 to 2 where the parent has closed them, or a connection gets their numbers and our output."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def _fd(stream: TextIO | None, number: int) -> int:
    return number if stream is None else stream.fileno()
