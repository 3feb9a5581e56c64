"""CompilerGroup: compilers that run side by side and end with this process, however it ends. Imports no torch."""

import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

# The guard's input ends with our process, even by SIGKILL. Then the group and its scratch folder go.
_GUARD = 'trap "" TERM; read -r line; kill -TERM 0; rm -rf "$1"; kill -KILL 0'
_MAX_OUTPUT = 500  # characters of a failed compiler's last words


class CompilerGroup:
    """Process group of compilers, whose files are in a scratch folder. Leaving the `with` block ends the group.

    A guard, which is a shell in the group, ends the compilers if this process ends. So the process need not wait for
    them, and a terminal's Ctrl-C does not reach them.
    """

    def __init__(self, scratch: Path, *, limit_s: float) -> None:
        """`limit_s`: longest time without an end or a word of any compiler."""
        self._scratch = scratch
        self._limit_s = limit_s
        self._output: dict[subprocess.Popen[bytes], bytes] = {}

    def __enter__(self) -> "CompilerGroup":
        command = ["/bin/sh", "-c", _GUARD, "sh", str(self._scratch)]
        nothing = subprocess.DEVNULL
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, process_group=0)
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.killpg(self._guard.pid, signal.SIGKILL)
        for process in (self._guard, *self._output):
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def run(
        self, commands: Sequence[Sequence[str]], *, num_parallel: int = 1, on_end: Callable[[int], None] | None = None
    ) -> None:
        """Run the commands; `on_end` receives the number that have ended so far.

        Raises OSError with the last words of a command that failed, TimeoutError at the limit.
        """
        num_ended = 0
        waiting = list(commands)
        with selectors.DefaultSelector() as running:
            while waiting or running.get_map():
                while waiting and len(running.get_map()) < num_parallel:
                    self._start(waiting.pop(0), running)
                if self._wait(running):
                    num_ended += 1
                    if on_end is not None:
                        on_end(num_ended)

    def _start(self, command: Sequence[str], running: selectors.BaseSelector) -> None:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(self._scratch)},  # a killed compiler leaves its temporary files
            process_group=self._guard.pid,
        )
        self._output[process] = b""
        assert process.stdout is not None
        running.register(process.stdout, selectors.EVENT_READ, (process, command[0]))

    def _wait(self, running: selectors.BaseSelector) -> bool:
        """Wait for output of a command. Returns True if the command has ended."""
        ready = running.select(self._limit_s)
        if not ready:
            raise TimeoutError(f"the compiler has said nothing for {self._limit_s:.0f} s")
        key, _ = ready[0]
        process, name = key.data
        if data := os.read(key.fd, 2**16):
            self._output[process] += data
            return False
        running.unregister(key.fileobj)
        if process.wait():
            text = self._output[process].decode(errors="replace").strip()
            raise OSError(f"{name}: {text[-_MAX_OUTPUT:]}")
        return True
