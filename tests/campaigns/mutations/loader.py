"""Loader: a forked process with limits that attempts one mutant after another, and the verdicts on them."""

import logging
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from mutations.attempt import LOADED, attempt
from mutations.mutants import Mutant

LIMIT_S = 120.0  # wall time of one mutant, after which a process hangs; 15 s are not enough at load 30
_PER_PROCESS = 100
_MORE_MEMORY = 3 * 2**30  # address space beyond the process's own at its start


@dataclass(frozen=True)
class Verdict:
    """Verdict on a mutant. `word`: loaded, refused or fault. `has_ended`: the process has, too."""

    mutant: Mutant
    word: str
    fault: str | None = None
    has_ended: bool = False


def verdicts(mutants: list[Mutant], folder: Path) -> Iterator[Verdict]:
    """Attempt all mutants, in a new process after each one that ended a process."""
    done = 0
    while done < len(mutants):
        batch = mutants[done : done + _PER_PROCESS]
        for judged in _batch(batch, folder / "mutant"):
            done += 1
            yield judged


def _batch(mutants: list[Mutant], folder: Path) -> Iterator[Verdict]:
    """Attempt mutants in one process. The verdict on the mutant that ends the process is the last one."""
    reading, writing = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        _attempt_all(mutants, folder, writing)
    writing.close()
    try:
        for mutant in mutants:
            judged = _verdict(mutant, reading, pid)
            yield judged
            if judged.has_ended:
                return
        os.waitpid(pid, 0)
    finally:
        reading.close()
        shutil.rmtree(folder, ignore_errors=True)


def _verdict(mutant: Mutant, reading: Connection, pid: int) -> Verdict:
    """Return the verdict on the next mutant of a process, which may have ended, and ends if it takes too long."""
    if not reading.poll(LIMIT_S):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return Verdict(mutant, "fault", f"no outcome within {LIMIT_S:g} s", has_ended=True)
    try:
        seen, fault = reading.recv()
    except EOFError:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return Verdict(mutant, "fault", f"ended the process with {code}", has_ended=True)
    return Verdict(mutant, "fault" if fault else "loaded" if seen == LOADED else "refused", fault)


def _attempt_all(mutants: list[Mutant], folder: Path, writing: Connection) -> None:
    """Attempt mutants and send each outcome; never return."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + _MORE_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable()  # of a self-test that fails
    try:
        for mutant in mutants:
            shutil.rmtree(folder, ignore_errors=True)
            path = mutant.written_to(folder)
            writing.send(attempt(path, is_short=mutant.is_short, num_bytes=len(mutant.content)))
    finally:
        sys.stderr.flush()
        os._exit(0)
