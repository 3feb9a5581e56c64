"""Sandbox: a process that tries each new grammar before this process compiles it.

llguidance bounds most of its work, but not all: a chain of 6,000 rules overflows the stack and would crash the server,
3,000 patterns under one allOf take over a minute, `multipleOf: 999983` takes 370 MB. Program of the process:
sandbox_worker.py.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import QueueFullError, UnavailableError
from ..workers.worker_process import Reply, WorkerEndedError, WorkerProcess

_PROGRAM = Path(__file__).with_name("sandbox_worker.py")
_BUSY_S = 5.0  # seconds until the waiting slow grammars have been tried


class SandboxError(Exception):
    """Error of a grammar that cannot be used; the message tells the user why."""


class Trial(NamedTuple):
    """Trial of a usable grammar: its size and its speed."""

    num_bytes: int  # approximate memory
    is_slow: bool  # True: takes more than 50 ms to compile


class Sandbox:
    """Process that tries grammars; it starts with the first grammar and ends with this object."""

    def __init__(self, *, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        setup = {"tokenizer": tokenizer_json, "vocab_size": vocab_size, "eos_token_ids": list(eos_token_ids)}
        self._process = WorkerProcess([str(_PROGRAM)], setup=json.dumps(setup))

    def run(self, grammar: str) -> Trial:
        """Try a grammar. Blocks. Raises SandboxError, QueueFullError, UnavailableError."""
        try:
            reply = self._ask(grammar)
        except WorkerEndedError as exc:
            raise UnavailableError("the process that tries grammars has ended twice; try again") from exc
        if "busy" in reply:
            raise QueueFullError(
                f"{reply['busy']} grammars that take long to compile wait; try again in {_BUSY_S:.0f} s",
                retry_after_s=_BUSY_S,
            )
        if "unavailable" in reply:
            raise UnavailableError(f"no process can be started to try a grammar ({reply['unavailable']}); try again")
        if "is_starved" in reply:
            raise UnavailableError("the machine is too busy to compile the grammar; try again later")
        if reply["error"] is not None:
            raise SandboxError(reply["error"])
        return Trial(reply["num_bytes"], reply["is_slow"])

    def _ask(self, grammar: str) -> Reply:
        job = json.dumps(grammar)
        try:
            return self._process.ask(job)
        except WorkerEndedError:  # something else may have killed the process
            return self._process.ask(job)
