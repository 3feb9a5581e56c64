"""StopSignals: SIGINT, SIGTERM, SIGQUIT and SIGHUP stop the server, whatever its threads are doing.

Python runs signal handlers in the main thread, so a blocked event loop would ignore them. Here the interpreter's C
handler writes the signal's number into a socket, and a separate thread reads it there. A process of its own
(last_resort.py) keeps the promise of an end even if no thread can run.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from . import last_resort
from .exit import end_hung, end_now

_DIED = 0  # not a signal's number
KILL_S = 0.5  # from a limit to the kill, if no thread could keep it


class StopSignals:
    """Context in which the first signal stops the server, and a second one ends it at once.

    Before `on_stop` there is nothing to finish: the first signal ends the process, SIGINT with 130 and others with 0.
    `numbers`: the signals; by default all that stop a server.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers or _numbers()
        self._stop: Callable[[], object] | None = None
        self._limit_s = 0.0
        self._last_resort: Any = None
        self._is_stopping = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._handlers: dict[int, object] = {}
        self._unused: dict[int, object] = {}
        self._wakeup_fd = -1

    def __enter__(self) -> "StopSignals":
        self._handlers = {number: signal.signal(number, self._on_signal) for number in self._numbers}
        self._unused = {number: signal.signal(number, _ignore) for number in _unused_numbers()}
        if os.name != "nt":
            self._wakeup_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="splitfuse-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_stopping:
            return  # handle signals until the process has ended: the rest of it may hang too
        if self._last_resort is not None:
            self._last_resort.communicate()  # its standard input closes
        if os.name != "nt":
            signal.set_wakeup_fd(self._wakeup_fd)
        for number, handler in (self._handlers | self._unused).items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._writer.close()

    def on_stop(self, stop: Callable[[], object], *, limit_s: float) -> None:
        """Make the first signal call `stop`, in another thread.

        A process that still runs `limit_s` seconds later ends with the signal's exit code, not 0. One whose threads
        cannot run is killed KILL_S later.
        """
        self._limit_s = limit_s
        if sys.platform != "win32":
            with contextlib.suppress(OSError):  # no process can be started
                self._last_resort = last_resort.start(self._reader.fileno(), limit_s=limit_s + KILL_S)
        self._stop = stop

    def hold_to_limit(self) -> None:
        """Apply the limit of `on_stop` to a process that ends for another reason."""
        self._writer.send(bytes([_DIED]))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if os.name == "nt":  # on Windows asyncio takes the wakeup fd
            self._writer.send(bytes([number]))

    def _watch(self) -> None:
        first = self._next()
        if first is None:
            self._reader.close()
            return
        self._is_stopping = True
        if self._last_resort is not None:
            self._last_resort.stdin.write(b"1")
        if self._stop is None:
            # A thread that loads weights cannot be stopped. A person's Ctrl-C ends what comes next in a script too, but
            # for a supervisor the end that it asked for is no failure.
            end_now(_exit_code(first) if first == signal.SIGINT else 0)
        with contextlib.suppress(RuntimeError):  # the event loop has just been closed
            self._stop()
        try:
            second = self._next(self._limit_s)
        except TimeoutError:
            end_hung(_exit_code(first), f"the process has not ended within {self._limit_s:g} s")
        end_now(_exit_code(second or first))

    def _next(self, limit_s: float | None = None) -> int | None:
        """Return the next number that is ours, None once the context has been left. Raises TimeoutError."""
        # `recv` alone would take a number before it waits for the interpreter's lock, and hide it from the last resort.
        while select.select([self._reader], [], [], limit_s)[0]:
            received = self._reader.recv(1)
            if not received or received[0] in (_DIED, *self._handlers):
                return received[0] if received else None
        raise TimeoutError


def _numbers() -> Sequence[signal.Signals]:
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGQUIT"):
        numbers.append(signal.SIGQUIT)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    return numbers


def _unused_numbers() -> list[signal.Signals]:
    """Signals that other programs use to reopen logs, and that end a process without a handler for them."""
    numbers = [getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. Unlike SIG_IGN a handler is not inherited by programs that this process starts."""


def _exit_code(number: int) -> int:
    return 1 if number == _DIED else 128 + number
