"""Program that takes rights away from its process, then runs the program that its arguments name.

WorkerProcess starts every worker through this file: `confined.py -c TEXT` or `confined.py FILE`. A worker reads and
computes what clients sent, so an escape from it should find nothing to use. It imports no module of ours.

What the kernel allows is taken: no new privileges (Linux 3.5), no network (user namespaces), and no file that can be
written, created, deleted or executed (Landlock, Linux 5.13). What the kernel refuses, as in most containers, is left.
"""

import ctypes
import os
import runpy
import struct
import sys

_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000
# One number on every architecture.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
# Of linux/landlock.h, version 1. The rights of _NOT_READ are all but READ_FILE (4) and READ_DIR (8).
_PATH_BENEATH = 1
_WRITE_FILE = 2
_NOT_READ = 0b1_1111_1111_0011


def main() -> None:
    """Confine the process and run the program."""
    if sys.platform == "linux":
        _confine()
    if sys.argv[1] == "-c":
        exec(sys.argv[2], {"__name__": "__main__"})  # the server's own text
    else:
        runpy.run_path(sys.argv[1], run_name="__main__")


def _confine() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    handled = struct.pack("Q", _NOT_READ)
    ruleset = libc.syscall(_LANDLOCK_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if ruleset >= 0:  # the ruleset forbids all that it handles, but writing to the null device
        nothing = struct.pack("=Qi", _WRITE_FILE, os.open(os.devnull, os.O_PATH | os.O_CLOEXEC))
        libc.syscall(_LANDLOCK_ADD_RULE, ruleset, _PATH_BENEATH, nothing, 0)
        libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)


if __name__ == "__main__":
    main()
