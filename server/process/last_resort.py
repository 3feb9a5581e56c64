"""Last resort: a small process beside the server, which kills it if it has not ended in time after a signal.

No thread of the server can promise its end: a call that keeps the interpreter's lock stops all of them. Python's C
handler still writes the signal's number into a socket then, where this process sees that nobody reads it. It imports
no module of ours, and ends with the server: its standard input closes.
"""

import os
import select
import signal
import sys
import time
from typing import Any

_TICK_S = 0.2  # between two looks at a number that nobody has read


def start(signals: int, *, limit_s: float) -> Any:
    """Start the process. It kills this one `limit_s` after a byte on its standard input, or an unread one in `signals`.

    Raises OSError.
    """
    import subprocess  # not in the small process

    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(signals), str(limit_s)]
    # A supervisor may send a signal to all processes: they are blocked before the program's first instruction. And a
    # session of its own, so that Ctrl-C reaches the server alone.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        env = {name: value for name, value in os.environ.items() if not name.startswith("SPLITFUSE_")}  # no keys
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, pass_fds=[signals], start_new_session=True, bufsize=0, env=env
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _main(parent: int, signals: int, limit_s: float) -> None:
    end, is_stopping = float("inf"), False
    while os.getppid() == parent and (now := time.monotonic()) < end:
        if select.select([0], [], [], _TICK_S)[0]:
            is_stopping = True
            if not os.read(0, 1):
                return
        is_due = is_stopping or select.select([signals], [], [], 0)[0]
        end = min(end, now + limit_s) if is_due else float("inf")
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
