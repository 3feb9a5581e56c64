"""Exits for a process whose threads cannot be waited for: Python's own exit joins them, even if they hang."""

import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from .queued_output import wait_written

INTERRUPTED = 130  # Ctrl-C, with the code that a shell reports for SIGINT
RANK_LOST_EXIT = 4  # a process of a tensor-parallel model ended or hangs: a supervisor should restart
END_S = 5  # limit from the end of the drain timeout to the end of the process, whatever hangs
HUNG_EXIT = 3  # no progress: a supervisor should restart the process


def end_now(code: int) -> NoReturn:
    """End at once, after waiting shortly for queued standard output and standard error."""
    try:
        wait_written()
    finally:
        os._exit(code)


def end_hung(code: int, why: str) -> NoReturn:
    """Write the reason and every thread's stack to standard error, and end the process."""
    try:
        print(f"splitfuse: error: {why}; every thread's stack follows\n{_stacks()}", file=sys.stderr)
    finally:
        end_now(code)


def _stacks() -> str:
    """Format the stacks like faulthandler, which would hold the interpreter, forever if nobody reads standard error."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, ident)} (most recent call first):\n" + "\n".join(_calls(frame))
        for ident, frame in sys._current_frames().items()
    )


def _calls(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}'
        frame = frame.f_back
