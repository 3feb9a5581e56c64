"""Program that ends with the process that started it: `python tied_process.py PARENT SIGNAL COMMAND…`.

Run as a file, so that it imports nothing of ours. It asks the kernel (Linux) for a signal when the parent has died, and
becomes the command.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tied(command: Sequence[str], *, end: int = signal.SIGTERM) -> list[str]:
    """Return the command line that runs `command` until the calling process ends, and then sends it this signal.

    Start it from a thread that lives as long as the process: the kernel watches the thread.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(end)), *command]


def main() -> None:
    """Become the command."""
    parent, end, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(end))
        if os.getppid() != int(parent):
            return  # the parent ended before the kernel was asked
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
