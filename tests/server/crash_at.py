"""`splitfuse serve` that dies, as by kill -9, right before or right after a commit, or when a prompt comes or runs.
With `engine` its engine dies of that, by an exception.

python crash_at.py before|after|before-batch|after-batch NUMBER serve …
python crash_at.py prompt TEXT serve …
python crash_at.py token ID serve …
python crash_at.py engine ID serve …
"""

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from splitfuse.engine.core.batch import Batch, RowOutput
from splitfuse.engine.core.engine_core import EngineCore, ScheduledStep, StepOutput
from splitfuse.engine.execution.runner.model_runner import ModelRunner
from splitfuse.server.cli import main
from splitfuse.server.results.durable.sqlite_store import SqliteStore
from splitfuse.server.service import Service


def die_at(method: str, number: int, *, before: bool) -> None:
    """Count calls of a method of the store that write something."""
    write: Callable[[SqliteStore, Any], None] = getattr(SqliteStore, method)
    numbers = itertools.count(1)

    def write_or_die(self: SqliteStore, changes: Any) -> None:
        is_last = bool(changes) and next(numbers) == number
        if is_last and before:
            os._exit(137)
        write(self, changes)
        if is_last:
            os._exit(137)

    setattr(SqliteStore, method, write_or_die)


def die_of_text(prompt: str) -> None:
    """Die when this prompt is to be answered."""
    complete = Service.complete

    async def complete_or_die(self: Service, jobs: Any, prompts: Any, *args: Any, **options: Any) -> None:
        if prompt in prompts:
            os._exit(137)
        await complete(self, jobs, prompts, *args, **options)

    Service.complete = complete_or_die  # type: ignore[method-assign]


def die_of(token_id: int) -> None:
    """Die in the step that computes a prompt which begins so."""
    run = ModelRunner.run

    def run_or_die(self: ModelRunner, batch: Batch) -> list[RowOutput]:
        if any(row.request.token_ids[0] == token_id for row in batch.rows):
            os._exit(137)
        return run(self, batch)

    ModelRunner.run = run_or_die  # type: ignore[method-assign]


def kill_engine_of(token_id: int) -> None:
    """Have the engine fail outside its model, after the third step of a prompt which begins so."""
    update = EngineCore.update

    def update_or_die(self: EngineCore, step: ScheduledStep, outputs: Sequence[RowOutput]) -> StepOutput:
        for row in step.batch.rows:
            if row.request.token_ids[0] == token_id and row.request.num_output_tokens == 3:
                raise OverflowError("a bug of the engine")
        return update(self, step, outputs)

    EngineCore.update = update_or_die  # type: ignore[method-assign]


if __name__ == "__main__":
    kind, value = sys.argv[1:3]
    if kind == "prompt":
        die_of_text(value)
    elif kind == "token":
        die_of(int(value))
    elif kind == "engine":
        kill_engine_of(int(value))
    else:
        side, _, is_batch = kind.partition("-")
        die_at("write_batches" if is_batch else "commit", int(value), before=side == "before")
    sys.exit(main(sys.argv[3:]))
