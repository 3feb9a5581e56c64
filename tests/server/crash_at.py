"""`splitfuse serve` that dies, as by kill -9, right before or right after a commit.

python crash_at.py before|after NUMBER serve …
"""

import itertools
import os
import sys

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


if __name__ == "__main__":
    die_at(int(sys.argv[2]), before=sys.argv[1] == "before")
    sys.exit(main(sys.argv[3:]))
