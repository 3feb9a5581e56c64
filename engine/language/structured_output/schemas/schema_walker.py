"""SchemaWalker: enforceable parts of large schemas, found by a process beside the server.

The walk is plain Python: 45 ms for 75 KB and 0.2 s for 570 KB, in which it would hold the event loop, or in a thread
the GIL of every step.
"""

import json
import os
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from ....errors import UnavailableError
from ...workers.worker_process import WorkerEndedError, WorkerProcess
from ..enforceable import Unenforced, enforceable
from .document import TooManySchemasError

LARGE_CHARS = 8 * 2**10  # walked within 5 ms
_MAX_KEPT = 16  # a request needs its schema twice, for its check and for its grammar
_PROGRAM = f"from {__name__} import main; main()"


class WalkedSchema(NamedTuple):
    """Enforceable part of a schema, as JSON text, and the keywords that it leaves out."""

    text: str
    unenforced: tuple[Unenforced, ...]


class SchemaWalker:
    """Walker of the schemas of this process, one after the other. Its process starts with the first schema."""

    def __init__(self) -> None:
        self._process = WorkerProcess(["-c", _PROGRAM], setup="null")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="splitfuse-schema")
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Future[WalkedSchema]] = OrderedDict()  # last used last

    def walk(self, text: str) -> "Future[WalkedSchema]":
        """Return a future of the walked schema. Requests share the future: do not cancel it.

        `text` is valid JSON. The future raises like `enforceable`.
        """
        with self._lock:
            future = self._kept.pop(text, None) or self._thread.submit(self._walk, text)
            self._kept[text] = future
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return future

    def _walk(self, text: str) -> WalkedSchema:
        try:
            reply = self._process.ask(json.dumps(text))
        except (UnavailableError, WorkerEndedError):
            return _walked(text)
        if error := _ERRORS.get(reply.get("error", "")):
            raise error()
        return WalkedSchema(reply["text"], tuple(Unenforced(*keyword) for keyword in reply["unenforced"]))


_ERRORS: dict[str, type[Exception]] = {error.__name__: error for error in (RecursionError, TooManySchemasError)}
WALKER = SchemaWalker()


def _walked(text: str) -> WalkedSchema:
    walked = enforceable(json.loads(text))
    return WalkedSchema(json.dumps(walked.schema), walked.unenforced)


def main() -> None:
    """Walk every schema on stdin until stdin ends, for WorkerProcess."""
    if hasattr(os, "nice"):
        os.nice(10)  # the engine's steps have priority
    sys.stdin.readline()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            text, unenforced = _walked(job["job"])
            reply = {"text": text, "unenforced": [(keyword.path, keyword.is_checked) for keyword in unenforced]}
        except (RecursionError, TooManySchemasError) as exc:
            reply = {"error": type(exc).__name__}
        print(json.dumps({"id": job["id"], **reply}), flush=True)
