"""The CUDA graphs of an engine, captured before anything is timed or compared, and how many steps were replays.

All that the scripts here take from inside the engine's launcher stands in this file.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from splitfuse.engine.execution.runner.cuda_graphs import graph_sizes


class Repeater:
    """In CUDA's place where there is no GPU: what was captured is done again."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return work


class Replays:
    """Captures graphs of a launcher for these numbers of rows (None: all), and counts its replays from then on."""

    def __init__(self, pipeline: Any, config: Any, sizes: Iterable[int] | None = None) -> None:
        self.count = 0
        launcher = pipeline.launcher
        if config.device == "cpu":
            model = launcher._model.config
            dtype = getattr(torch, config.dtype if config.dtype != "auto" else "bfloat16")
            rows = graph_sizes(config.step_limits.num_seqs)
            launcher.use_graphs(Repeater(), sizes=rows, hidden_size=model.hidden_size, dtype=dtype)
        graphs = launcher._graphs
        wanted = graph_sizes(config.step_limits.num_seqs)
        if sizes is not None:
            wanted = tuple(sorted({wanted[0], *map(graphs.size_for, sizes)}, reverse=True))
        mixed = launcher._mixed_graphs
        for kind, kind_sizes in ((mixed, mixed._sizes), (graphs, wanted)):
            for size in kind_sizes:  # falling: the smaller ones fit into the largest one's memory
                if not kind.has(size):
                    launcher._capture(size, kind)
            assert all(map(kind.has, kind_sizes)), "a graph could not be captured: see the log above"
            self._count(kind)

    def _count(self, graphs: Any) -> None:
        replay = graphs.replay

        def counted(size: int, block_tables: Tensor) -> Tensor:
            self.count += 1
            hidden: Tensor = replay(size, block_tables)
            return hidden

        graphs.replay = counted
