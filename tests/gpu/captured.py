"""CUDA graphs of an engine, captured before timings and comparisons, and the number of replayed steps.

All access of this folder's scripts to the inside of the engine's launcher is in this file.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from splitfuse.engine.execution.runner.async_runner import AsyncRunner
from splitfuse.engine.execution.runner.cuda_graphs import graph_sizes


@contextmanager
def without_rehearsal() -> Iterator[None]:
    """Build launchers whose kernels are compiled: the launches alone take some 3 s of 32 layers' host time."""
    with patch.object(AsyncRunner, "compile_kernels", lambda self: None):
        yield


class Repeater:
    """Stand-in for CUDA without a GPU: repeats the captured work."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return work


class Replays:
    """Graphs of a launcher, captured for these numbers of rows (None: all), and the count of their replays."""

    def __init__(self, pipeline: Any, config: Any, sizes: Iterable[int] | None = None) -> None:
        self.count = 0
        launcher = pipeline.launcher
        if config.device == "cpu":
            model = launcher._model.config
            dtype = getattr(torch, config.dtype if config.dtype != "auto" else "bfloat16")
            rows = graph_sizes(config.max_num_seqs)
            launcher.use_graphs(Repeater(), sizes=rows, hidden_size=model.hidden_size, dtype=dtype)
        graphs = launcher.graphs.decodes
        wanted = graph_sizes(config.max_num_seqs)
        if sizes is not None:
            wanted = tuple(sorted({wanted[0], *map(graphs.size_for, sizes)}, reverse=True))
        mixed = launcher.graphs.mixed
        for kind, kind_sizes in ((mixed, mixed._sizes), (graphs, wanted)):
            for size in kind_sizes:  # descending: smaller graphs fit into the largest one's memory
                if not kind.has(size):
                    launcher.graphs.capture(size, kind)
            assert all(map(kind.has, kind_sizes)), "a graph could not be captured: see the log above"
            self._count(kind)

    def _count(self, graphs: Any) -> None:
        replay = graphs.replay

        def counted(size: int, block_tables: Tensor) -> Tensor:
            self.count += 1
            hidden: Tensor = replay(size, block_tables)
            return hidden

        graphs.replay = counted
