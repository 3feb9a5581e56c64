"""CompilerGroup: compilers that run side by side and end with this process, however it ends. Imports no torch."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# The guard's input ends with our process, even by SIGKILL. Then the group and its scratch folder go.
_GUARD = 'trap "" TERM; read -r line; kill -TERM 0; rm -rf "$1"; kill -KILL 0'
_MAX_OUTPUT = 500  # characters of a failed compiler's last words
_TICK_S = 1.0


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
        self,
        commands: Sequence[Sequence[str]],
        *,
        num_parallel: int = 1,
        on_end: Callable[[Sequence[str]], None] = lambda command: None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Run the commands; `on_end` receives each that has succeeded, `on_tick` is called every second.

        Raises OSError with the last words of a command that failed, TimeoutError at the limit.
        """
        waiting = list(commands)
        with selectors.DefaultSelector() as running:
            while waiting or running.get_map():
                while waiting and len(running.get_map()) < num_parallel:
                    self._start(waiting.pop(0), running)
                if ended := self._wait(running, on_tick):
                    on_end(ended)

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
        running.register(process.stdout, selectors.EVENT_READ, (process, command))

    def _wait(self, running: selectors.BaseSelector, on_tick: Callable[[], None]) -> Sequence[str] | None:
        """Wait for output of a command. Returns the command if it has ended."""
        limit = time.monotonic() + self._limit_s
        while not (ready := running.select(min(_TICK_S, self._limit_s))):
            if time.monotonic() >= limit:
                raise TimeoutError(f"the compiler has said nothing for {self._limit_s:.0f} s")
            on_tick()
        key, _ = ready[0]
        process: subprocess.Popen[bytes]
        command: Sequence[str]
        process, command = key.data
        if data := os.read(key.fd, 2**16):
            self._output[process] += data
            return None
        running.unregister(key.fileobj)
        if process.wait():
            text = self._output[process].decode(errors="replace").strip()
            raise OSError(f"{command[0]}: {text[-_MAX_OUTPUT:]}")
        return command
