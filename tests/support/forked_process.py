"""ForkedProcess: a server process that has torch and the server's modules from the start, by a fork of one that waits.

Most of a test server's start is imports: 2.5 of 4 s. A process of this file imports them once, before it has any other
thread, and forks for each server that is asked for; what the server does from then on, main() included, is its own.
"""

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
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import IO, Any

_LARGEST_REQUEST = 2**20


class ForkedProcess:
    """What tests use of subprocess.Popen, for `python *command` with pipes or files for its output."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`stdout`, `stderr`: descriptors; None makes a pipe that is read as text. `env` comes to what is set here."""
        with contextlib.ExitStack() as given_away:
            ends = [_pipe(given_away) if fd is None else (None, fd) for fd in (stdout, stderr)]
            self._exit_pipe, exit_fd = os.pipe()
            given_away.callback(os.close, exit_fd)
            self._poll = select.poll()
            self._poll.register(self._exit_pipe, select.POLLIN)
            request = {"command": list(command), "cwd": os.getcwd(), "env": {**os.environ, **(env or {})}}
            self.pid = _forker().fork(request, [ends[0][1], ends[1][1], exit_fd])
        self.stdout, self.stderr = (None if end is None else os.fdopen(end, "r") for end, _ in ends)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative after a signal; None while it runs."""
        return self._await_exit(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        if self._await_exit(timeout) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What is left of its output, and wait. Raises subprocess.TimeoutExpired."""
        texts = ["", ""]

        def read(place: int, file: IO[str]) -> None:
            texts[place] = file.read()
            file.close()

        files = [(place, file) for place, file in enumerate((self.stdout, self.stderr)) if file and not file.closed]
        readers = [threading.Thread(target=read, args=each, daemon=True) for each in files]
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
    """The process that waits; it ends with this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment
            )
        self._lock = threading.Lock()

    def fork(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        """The new process's id. `request`: the arguments of _run."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
            return int(self._socket.recv(100))


@lru_cache(maxsize=1)
def _forker() -> _Forker:
    return _Forker()


# The process that waits.


def _wait(requests: socket.socket) -> dict[str, Any] | None:
    """Returns what a new process is to do, in that process; None in this one, at its end."""
    import splitfuse.engine.serving.builder  # torch
    import splitfuse.server.cli
    import splitfuse.server.process.process  # noqa: F401

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
    """And let go of whatever belongs to the process that waits."""
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, 1 + max(int(fd) for fd in os.listdir("/proc/self/fd")))


def _run(command: list[str], cwd: str, env: dict[str, str]) -> None:
    """As `python *command` does."""
    os.chdir(cwd)
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
