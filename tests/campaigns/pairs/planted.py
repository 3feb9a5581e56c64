"""Bugs that show where features meet. `python -m pairs.planted NAME serve …` is a server with one of them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import memory_bugs
from pairs.switches import SERVER, Row

from splitfuse.engine.extras.forks import fork
from splitfuse.server.api.native import routes
from splitfuse.server.jobs import job
from splitfuse.server.jobs.result_store import ResultStore


@dataclass(frozen=True)
class Planted:
    """Bug of `name` of a class or module, and the values of switches of a server that meet in it."""

    owner: Any
    name: str
    make: Callable[[Any], Any]
    meets: dict[str, str] = field(default_factory=dict)

    def row(self) -> Row:
        """Return the row of a server that can show the bug."""
        return {name: next(iter(values)) for name, values in SERVER.items()} | self.meets

    def plant(self) -> None:
        """Plant the bug in this process."""
        setattr(self.owner, self.name, self.make(getattr(self.owner, self.name)))


def _known(name: str, **meets: str) -> tuple[str, Planted]:
    bug = memory_bugs.BUGS[name]
    return name, Planted(bug.owner, bug.name, bug.make, meets)


async def _no_key(self: Any, owner: str, key: Any) -> None:
    return None


_CROWD = {"seqs": "16", "blocks": "few", "block_size": "8"}
_EMPTIED = _CROWD | {"event": "sleep"}  # prompts are computed again and again, at once and in any order
PLANTED = dict(
    (
        _known("swap_out_is_lost", preemption="swap", **_CROWD),
        _known("swap_in_goes_to_the_wrong_block", preemption="swap", **_CROWD),
        _known("overwritten_block_is_still_found", **_CROWD),
        _known("shared_block_is_freed_for_all", **_CROWD),
        _known("hash_is_without_its_parent", **_EMPTIED),
        _known("sharing_takes_no_reference", **_CROWD),
        _known("copy_on_write_is_skipped", seqs="16"),
        _known("copy_is_lost", seqs="16"),
        ("fork_has_the_first_seed", Planted(fork, "derive_seed", lambda right: lambda seed, index: seed)),
        ("joined_events_lose_text", Planted(job, "_joined", lambda right: lambda one, two: two, {"interval": "4"})),
        ("an_event_comes_again", Planted(routes, "last_event", lambda right: lambda *ids: max(-1, right(*ids) - 1))),
        ("a_key_runs_twice", Planted(ResultStore, "find_key", lambda right: _no_key, {"results": "file"})),
    )
)


if __name__ == "__main__":
    from splitfuse.server.cli import main

    PLANTED[sys.argv.pop(1)].plant()
    sys.exit(main())
