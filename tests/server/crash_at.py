"""`splitfuse serve` that dies, as by kill -9, right before or right after a commit, or when it runs a certain prompt.

python crash_at.py before|after NUMBER serve …
python crash_at.py token ID serve …
"""

import itertools
import os
import sys

from splitfuse.engine.batch import Batch, RowOutput
from splitfuse.engine.runner.model_runner import ModelRunner
from splitfuse.server.cli import main
from splitfuse.server.storage.records import Changes
from splitfuse.server.storage.sqlite_store import SqliteStore


def die_at(number: int, *, before: bool) -> None:
    """Count commits that write something."""
    commit, numbers = SqliteStore.commit, itertools.count(1)

    def commit_or_die(self: SqliteStore, changes: Changes) -> None:
        is_last = bool(changes) and next(numbers) == number
        if is_last and before:
            os._exit(137)
        commit(self, changes)
        if is_last:
            os._exit(137)

    SqliteStore.commit = commit_or_die  # type: ignore[method-assign]


def die_of(token_id: int) -> None:
    """Die in the step that computes a prompt which begins so."""
    run = ModelRunner.run

    def run_or_die(self: ModelRunner, batch: Batch) -> list[RowOutput]:
        if any(row.request.token_ids[0] == token_id for row in batch.rows):
            os._exit(137)
        return run(self, batch)

    ModelRunner.run = run_or_die  # type: ignore[method-assign]


if __name__ == "__main__":
    if sys.argv[1] == "token":
        die_of(int(sys.argv[2]))
    else:
        die_at(int(sys.argv[2]), before=sys.argv[1] == "before")
    sys.exit(main(sys.argv[3:]))
