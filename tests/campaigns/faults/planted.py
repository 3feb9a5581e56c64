"""`splitfuse` with a fault planted into the engine: `python -m faults.planted FAULT serve …`.

hang    a step with a prompt that begins with MARK never returns
once    a step raises MemoryError the first time it is tried
always  every step raises
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

from splitfuse.engine.core.batch import Batch
from splitfuse.engine.core.isolation import IsolatingRunner
from splitfuse.server.cli import main

MARK = 7


def _hang(run: Callable[[Batch], Any], batch: Batch) -> Any:
    if any(row.request.token_ids[0] == MARK for row in batch.rows):
        threading.Event().wait()
    return run(batch)


def _always(run: Callable[[Batch], Any], batch: Batch) -> Any:
    raise MemoryError("planted")


class _Once:
    def __init__(self) -> None:
        self._tried = -1

    def __call__(self, run: Callable[[Batch], Any], batch: Batch) -> Any:
        if batch.step > self._tried:
            self._tried = batch.step
            raise MemoryError("planted")
        return run(batch)


class _Planted:
    """Runner with the fault in front."""

    def __init__(self, runner: Any, fault: Callable[..., Any]) -> None:
        self.move = runner.move
        self._run = runner.run
        self._fault = fault

    def run(self, batch: Batch) -> Any:
        return self._fault(self._run, batch)


if __name__ == "__main__":
    faults: dict[str, Callable[..., Any]] = {"hang": _hang, "always": _always, "once": _Once()}
    planted = faults[sys.argv[1]]
    make = IsolatingRunner.__init__

    def init(self: IsolatingRunner, runner: Any, *more: Any) -> None:
        make(self, _Planted(runner, planted), *more)

    IsolatingRunner.__init__ = init  # type: ignore[assignment]
    sys.exit(main(sys.argv[2:]))
