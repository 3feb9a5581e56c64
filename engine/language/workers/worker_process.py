"""WorkerProcess: a process that answers one JSON line with another, for work that may hang or crash.

It starts with the first message, restarts after it has ended, and is killed when it answers no more.
"""

import contextlib
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ...errors import UnavailableError

Reply = dict[str, Any]

# A process that has not answered for this time while it had a job is stopped, or stuck. The first answer may take
# longer: among 30 busy processes a start takes more than 10 s.
_SILENCE_S = 10.0
_START_S = 60.0
_CONFINED = Path(__file__).with_name("confined.py")


class WorkerEndedError(Exception):
    """The process ended before it answered. `exit_code`: minus the signal's number if a signal ended it.

    `was_silent`: it was ended because it had not answered in time.
    """

    def __init__(self, exit_code: int, *, was_silent: bool = False) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code
        self.was_silent = was_silent


class WorkerProcess:
    """Confined Python process (confined.py) with these arguments, which ends with this object.

    The process reads `setup` first, then lines {"id": number, "job": …}. For each line it writes {"id": number, …}, in
    any order.
    """

    def __init__(self, arguments: Sequence[str], *, setup: str) -> None:
        self._arguments = arguments
        self._setup = setup
        self._lock = threading.Lock()
        self.current: Connection | None = None
        self._end: Callable[[], object] = lambda: None  # ends the current process and frees its resources

    def start(self) -> None:
        """Start the process before its first job. Raises UnavailableError if it cannot start."""
        with self._lock:
            self._connected()

    def ask(self, job: str) -> Reply:
        """Send a job, as JSON, and wait for the reply. Raises WorkerEndedError; UnavailableError if none can start."""
        with self._lock:
            connection = self._connected()
        reply = connection.send(job)
        if (answer := _awaited(reply, connection)) is None:
            connection.process.kill()
            raise WorkerEndedError(connection.process.wait(), was_silent=connection.was_silent)
        return answer

    def _connected(self) -> "Connection":
        if self.current is None or self.current.is_closed:
            self._end()
            try:
                self.current = Connection(self._arguments, self._setup)
            except (OSError, RuntimeError) as exc:  # no file descriptor, memory, process or thread is left
                raise UnavailableError(f"the server cannot start a process now ({exc}); try again in a moment") from exc
            self._end = weakref.finalize(self, self.current.end)
        return self.current


def _awaited(reply: "Future[Reply | None]", connection: "Connection") -> Reply | None:
    while True:
        num_replies = connection.num_replies
        try:
            return reply.result(timeout=_SILENCE_S if num_replies else _START_S)
        except TimeoutError:
            if connection.num_replies == num_replies:
                connection.was_silent = True
                connection.close()
                return None


class Connection:
    """Process with its outstanding replies. After its end every reply is None."""

    def __init__(self, arguments: Sequence[str], setup: str) -> None:
        # Its own session: a Ctrl-C in the terminal is for the server. -P: else our modules would hide Python's own.
        command = [sys.executable, "-P", str(_CONFINED), *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.is_closed = False
        self.was_silent = False
        self.num_replies = 0
        self._lock = threading.Lock()
        self._num_sent = 0
        self._pending: dict[int, Future[Reply | None]] = {}
        self._unwritten: SimpleQueue[str | None] = SimpleQueue()
        self._unwritten.put(setup)
        try:
            # A thread writes, because a stopped process reads nothing: that must hold up no lock.
            for work in (self._write, self._read):
                threading.Thread(target=work, name="splitfuse-worker", daemon=True).start()
        except RuntimeError:
            self.close()
            self.end()
            raise

    def send(self, job: str) -> "Future[Reply | None]":
        """Send a job. The reply is None if the process ends first."""
        reply: Future[Reply | None] = Future()
        with self._lock:
            if self.is_closed:
                reply.set_result(None)
                return reply
            self._num_sent += 1
            self._pending[self._num_sent] = reply
            self._unwritten.put(f'{{"id": {self._num_sent}, "job": {job}}}')
        return reply

    def close(self) -> None:
        """Give up the outstanding replies. May be called more than once."""
        with self._lock:
            self.is_closed = True
            pending, self._pending = self._pending, {}
        self._unwritten.put(None)
        for reply in pending.values():
            reply.set_result(None)

    def end(self) -> None:
        """Kill the process and free its resources."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # a job was not written yet
            self.process.stdin.close()

    def _write(self) -> None:
        assert self.process.stdin is not None
        while (line := self._unwritten.get()) is not None:
            try:
                self.process.stdin.write(line.encode() + b"\n")
                self.process.stdin.flush()
            except (OSError, ValueError):  # the process has just died; ValueError: its pipe is closed already
                self.close()
                return

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            with self.process.stdout as stdout:
                for line in stdout:
                    self._receive(json.loads(line))
        finally:
            self.close()

    def _receive(self, message: Reply) -> None:
        with self._lock:
            self.num_replies += 1
            reply = self._pending.pop(message["id"], None)
        if reply is not None:
            reply.set_result(message)
