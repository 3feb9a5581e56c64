"""Trials: a process that tries each new grammar before this one compiles it, and what it says of them.

llguidance bounds most of its work, but not all: a chain of 6,000 rules overflows the stack and would take the server
along, 3,000 patterns under one allOf take over a minute, `multipleOf: 999983` takes 370 MB. The process's program is
grammar_trial.py.
"""

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

_PROGRAM = Path(__file__).with_name("sandbox_worker.py")
# An answer that has not come by then never will: somebody has stopped the process. It may first have to read a
# tokenizer, 0.6 s, and gives each grammar 1.2 s.
_LOST_S = 10.0

Reply = dict[str, Any]  # {"id": job, "error": why it cannot be used or None, "num_bytes": what it takes}


class TrialError(Exception):
    """The grammar cannot be used; the message says why, to the user."""


class Trials:
    """Runs trials in a process that starts with the first one and ends with this object."""

    def __init__(self, *, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._setup = {"tokenizer": tokenizer_json, "vocab_size": vocab_size, "eos_token_ids": list(eos_token_ids)}
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._owed = _Owed(is_closed=True)
        self._end: Callable[[], object] = lambda: None  # the process, and take back what it held

    def run(self, grammar: str) -> int:
        """Try a grammar; returns about how many bytes it takes. Blocks. Raises TrialError."""
        reply = self._answer(grammar) or self._answer(grammar)  # somebody may have killed the process
        if reply is None:
            raise TrialError("the process that tries it has ended; try again")
        if reply["error"] is not None:
            raise TrialError(reply["error"])
        num_bytes: int = reply["num_bytes"]
        return num_bytes

    def _answer(self, grammar: str) -> Reply | None:
        with self._lock:
            if self._owed.is_closed:
                self._start()
            process, owed, number = self._process, self._owed, next(self._ids)
            answer = owed.add(number)
            self._send({"id": number, "grammar": grammar})
        try:
            return answer.result(timeout=_LOST_S)
        except TimeoutError:
            assert process is not None
            process.kill()
            owed.close()
            return None

    def _start(self) -> None:
        self._end()
        self._owed = owed = _Owed()
        # Its own session: a Ctrl-C in the terminal is for us. -P: or modules of ours would hide Python's own.
        self._process = process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert process.stdout is not None
        threading.Thread(
            target=_read_replies, args=(process.stdout, owed), name="splitfuse-trials", daemon=True
        ).start()
        self._end = weakref.finalize(self, _end, process)
        self._send(self._setup)

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:  # it has just died
            self._owed.close()


class _Owed:
    """The answers that one process still owes. When it has ended there are none: what is asked later gets None."""

    def __init__(self, *, is_closed: bool = False) -> None:
        self._lock = threading.Lock()
        self._answers: dict[int, Future[Reply | None]] = {}
        self._is_closed = is_closed

    @property
    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return self._is_closed

    def add(self, number: int) -> "Future[Reply | None]":
        """Wait for an answer; to be called before the question is sent."""
        answer: Future[Reply | None] = Future()
        with self._lock:
            if not self._is_closed:
                self._answers[number] = answer
                return answer
        answer.set_result(None)
        return answer

    def settle(self, reply: Reply) -> None:
        """Here is one."""
        with self._lock:
            answer = self._answers.pop(reply["id"], None)
        if answer is not None:
            answer.set_result(reply)

    def close(self) -> None:
        """The process has ended. May be called twice."""
        with self._lock:
            self._is_closed = True
            answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.set_result(None)


def _read_replies(stream: IO[bytes], owed: _Owed) -> None:
    with stream:
        for line in stream:
            owed.settle(json.loads(line))
    owed.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # something was still to be written
        process.stdin.close()
