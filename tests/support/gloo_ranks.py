"""Ranks as on GPUs, on a CPU: processes that meet through gloo, steps that run ahead, graphs that do the work again.

`python tests/support/gloo_ranks.py serve …` is `splitfuse serve` with such ranks.
"""

import sys
from pathlib import Path

import pytest
from repeating_capturer import RepeatingCapturer

from splitfuse.engine.execution.runner import launching
from splitfuse.engine.extras.parallel import parallel_model, rank_processes

_HERE = str(Path(__file__).resolve().parent)
_RANK = f"import sys; sys.path.insert(0, {_HERE!r}); import gloo_ranks as g; g.become_rank(); "
PATCH = pytest.MonkeyPatch()  # for the life of a process


def emulate_graphs(patch: pytest.MonkeyPatch) -> list[RepeatingCapturer]:
    """Give launchers graphs on the CPU. Return the list that will hold this process's capturers."""
    capturers: list[RepeatingCapturer] = []

    def capturer(device: object) -> RepeatingCapturer:
        capturers.append(RepeatingCapturer())
        return capturers[-1]

    patch.setattr(launching, "_capturer", capturer)
    return capturers


def become_rank() -> None:
    emulate_graphs(PATCH)


def use_gloo_ranks(patch: pytest.MonkeyPatch) -> list[RepeatingCapturer]:
    """Make ranks on a CPU those of GPUs; with async_scheduling they have graphs. Return as emulate_graphs does."""
    patch.setitem(parallel_model._BACKENDS, "cpu", "gloo")
    patch.setattr(rank_processes, "_PROGRAM", _RANK + rank_processes._PROGRAM)
    return emulate_graphs(patch)


if __name__ == "__main__":
    from splitfuse.server.cli import main

    use_gloo_ranks(PATCH)
    sys.exit(main())
