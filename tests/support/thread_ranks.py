"""Ranks of tensor parallelism as threads of this process: real messages and sums, without a second to start."""

import contextlib
from multiprocessing.connection import Connection
from typing import Any

import pytest

from splitfuse.engine.extras.parallel import rank_process, rank_processes
from splitfuse.engine.extras.parallel.group import Group


def use_thread_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an LLM's other ranks threads, which end with it."""
    monkeypatch.setattr(rank_processes, "_live", _live)


def _live(state: Any, rank: int, spec: Group, memory: int, pipe: Connection) -> None:
    parallel = spec.join(memory, rank=rank, limit_s=0)
    state.add(None)
    with contextlib.suppress(SystemExit):  # SystemExit would end a process
        rank_process._follow(pipe, parallel)
