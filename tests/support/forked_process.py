"""ForkedProcess: a server process with torch and the server's modules already imported, forked from a waiting process.

Imports take 2.5 of the 4 s of a test server's start. A process of this file imports once, before it has any other
thread, and forks for each server; everything after the fork, main() included, is the server's own.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import IO, Any

_LARGEST_REQUEST = 2**20


class ForkedProcess:
    """Part of subprocess.Popen that tests use, for `python *command` with pipes or files for its output."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> None:
        """Fork. `stdout`, `stderr`: descriptors, or None for a pipe read as text. `env` adds to the environment.

        `stdin`: the whole standard input.
        """
        with contextlib.ExitStack() as given_away:
            ends = [_pipe(given_away) if fd is None else (None, fd) for fd in (stdout, stderr)]
            self._exit_pipe, exit_fd = os.pipe()
            given_away.callback(os.close, exit_fd)
            self._poll = select.poll()
            self._poll.register(self._exit_pipe, select.POLLIN)
            environment = {**os.environ, **(env or {})}
            request = {"command": list(command), "cwd": os.getcwd(), "env": environment, "stdin": stdin}
            self.pid = _forker().fork(request, [ends[0][1], ends[1][1], exit_fd])
        self.stdout, self.stderr = (None if end is None else os.fdopen(end, "r") for end, _ in ends)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative after a signal; None while the process runs."""
        return self._await_exit(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""
        if self._await_exit(timeout) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):  # its parent has reaped it meanwhile
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait, and return the rest of the output. Raises subprocess.TimeoutExpired."""
        texts = ["", ""]

        def read(place: int, file: IO[str]) -> None:
            texts[place] = file.read()
            file.close()

        files = [(place, file) for place, file in enumerate((self.stdout, self.stderr)) if file and not file.closed]
        readers = [threading.Thread(target=read, args=file, daemon=True) for file in files]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        self.wait(timeout)
        return texts[0], texts[1]

    def _await_exit(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._poll.poll(None if timeout is None else 1000 * timeout):
            self.returncode = int(os.read(self._exit_pipe, 100) or -signal.SIGKILL)
            os.close(self._exit_pipe)
        return self.returncode


def _pipe(given_away: contextlib.ExitStack) -> tuple[int, int]:
    ours, theirs = os.pipe()
    given_away.callback(os.close, theirs)
    return ours, theirs


class _Forker:
    """Waiting process from which servers are forked; it ends with this process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment
            )
        self._lock = threading.Lock()
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Fork, and return the new process's id. `request`: the arguments of _run."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
            return int(self._socket.recv(100))


@lru_cache(maxsize=1)
def _forker() -> _Forker:
    return _Forker()


# The waiting process.


def _wait(requests: socket.socket) -> dict[str, Any] | None:
    """Wait for requests. Returns the request in a new process; None in this process, at its end."""
    import splitfuse.engine.serving.builder  # torch
    import splitfuse.server.cli
    import splitfuse.server.commands.command_line
    import splitfuse.server.process.process
    import splitfuse.server.process.start  # noqa: F401

    gc.freeze()
    with selectors.PollSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    selector.unregister(key.fileobj)
                    _tell_exit(key.fd, *key.data)
                    continue
                data, fds, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 3)
                if not data:
                    return None
                pid = os.fork()
                if pid == 0:
                    _take_streams(*fds[:2])
                    return json.loads(data)  # type: ignore[no-any-return]
                for fd in fds[:2]:
                    os.close(fd)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, fds[2]))
                requests.send(str(pid).encode())


def _tell_exit(pidfd: int, pid: int, exit_fd: int) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(pidfd)
    with contextlib.suppress(BrokenPipeError):
        os.write(exit_fd, str(os.waitstatus_to_exitcode(status)).encode())
    os.close(exit_fd)


def _take_streams(stdout: int, stderr: int) -> None:
    """Take these descriptors as standard streams, and close all others, which are the waiting process's."""
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, 1 + max(int(fd) for fd in os.listdir("/proc/self/fd")))


def _run(command: list[str], cwd: str, env: dict[str, str], stdin: str) -> None:
    """Run like `python *command`."""
    os.chdir(cwd)
    with tempfile.TemporaryFile() as file:
        file.write(stdin.encode())
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if command[0] == "-m":
        sys.path[0], sys.argv = cwd, command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = os.path.dirname(os.path.abspath(command[0])), command
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    given = socket.socket(fileno=int(sys.argv[1]))
    request = _wait(given)
    given.detach()
    if request is not None:
        _run(**request)
