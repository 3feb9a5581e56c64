"""Sandbox: a process that tries each new grammar before this one compiles it.

llguidance bounds most of its work, but not all: a chain of 6,000 rules overflows the stack and would crash the server,
3,000 patterns under one allOf take over a minute, `multipleOf: 999983` takes 370 MB. The process's program is
sandbox_worker.py.
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
from typing import Any

_PROGRAM = Path(__file__).with_name("sandbox_worker.py")
# A reply that has not come by then never will: the process has been stopped. It may first have to read a tokenizer,
# 0.6 s, and gives each grammar 1.2 s.
_REPLY_TIMEOUT_S = 10.0

Reply = dict[str, Any]  # {"id": job, "error": why it cannot be used or None, "num_bytes": what it takes}


class SandboxError(Exception):
    """The grammar cannot be used; the message explains why, to the user."""


class Sandbox:
    """Tries grammars in a process that starts with the first one and ends with this object."""

    def __init__(self, *, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._setup = {"tokenizer": tokenizer_json, "vocab_size": vocab_size, "eos_token_ids": list(eos_token_ids)}
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._worker: _Worker | None = None
        self._end: Callable[[], object] = lambda: None  # the worker, and free what it held

    def run(self, grammar: str) -> int:
        """Try a grammar; returns about how many bytes it takes. Blocks. Raises SandboxError."""
        reply = self._ask(grammar) or self._ask(grammar)  # the process may have been killed
        if reply is None:
            raise SandboxError("the process that tries it has ended; try again")
        if reply["error"] is not None:
            raise SandboxError(reply["error"])
        num_bytes: int = reply["num_bytes"]
        return num_bytes

    def _ask(self, grammar: str) -> Reply | None:
        with self._lock:
            if self._worker is None or self._worker.is_closed:
                self._end()
                self._worker = _Worker(self._setup)
                self._end = weakref.finalize(self, self._worker.end)
            worker = self._worker
            reply = worker.ask(next(self._ids), grammar)
        try:
            return reply.result(timeout=_REPLY_TIMEOUT_S)
        except TimeoutError:
            worker.process.kill()
            worker.close()
            return None


class _Worker:
    """One process, and the replies that are still to come. After its end each is None."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        # Its own session: a Ctrl-C in the terminal is for us. -P: or modules of ours would hide Python's own.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.is_closed = False
        self._lock = threading.Lock()
        self._pending: dict[int, Future[Reply | None]] = {}
        threading.Thread(target=self._read_replies, name="splitfuse-sandbox", daemon=True).start()
        self._send(setup)

    def ask(self, number: int, grammar: str) -> "Future[Reply | None]":
        """Send a grammar. The reply is None if the process ends first."""
        reply: Future[Reply | None] = Future()
        with self._lock:
            self._pending[number] = reply
        self._send({"id": number, "grammar": grammar})
        if self.is_closed:  # perhaps before the reply was pending
            self.close()
        return reply

    def close(self) -> None:
        """No more replies will come. May be called more than once."""
        with self._lock:
            self.is_closed = True
            pending, self._pending = self._pending, {}
        for reply in pending.values():
            reply.set_result(None)

    def end(self) -> None:
        """Kill the process and free what it held."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # something was still to be written
            self.process.stdin.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:  # it has just died
            self.close()

    def _read_replies(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                message = json.loads(line)
                with self._lock:
                    reply = self._pending.pop(message["id"], None)
                if reply is not None:
                    reply.set_result(message)
        self.close()
