"""GraphSet: the graphs of one engine, of decodes and of mixed batches, and the captures that are due."""

from typing import TYPE_CHECKING

import torch

from ...device import Stream
from .forward_pass import Ranks

if TYPE_CHECKING:
    from .cuda_graphs import StepGraph, StepGraphs


class GraphSet:
    """Graphs of both kinds of batches; empty until `use`."""

    def __init__(self, stream: Stream, ranks: Ranks) -> None:
        self.num_captured = 0
        self._ranks = ranks
        self._stream = stream
        self.decodes: StepGraphs | None = None
        self.mixed: StepGraphs | None = None

    def use(self, *, decodes: "StepGraphs", mixed: "StepGraphs") -> None:
        """Find graphs among these from now on."""
        self.decodes, self.mixed = decodes, mixed

    def of_kind(self, is_mixed: bool) -> "StepGraphs | None":
        """Return the graphs of mixed batches, or of decodes."""
        return self.mixed if is_mixed else self.decodes

    def find(self, *, num_tokens: int, num_rows: int, num_logits: int) -> "StepGraph | None":
        """Return a captured graph for a batch; None if there is none. Captures a graph if one is due."""
        graphs, size = self.decodes, None
        if graphs is not None and num_tokens == num_rows == num_logits:
            size = graphs.size_for(num_tokens)
        if size is None and (graphs := self.mixed) is not None:  # these serve more decodes than the others, too
            size = graphs.size_for(num_tokens)
        if graphs is None or size is None:
            return None
        if not graphs.has(size):
            due = graphs.next_after_eager(size)
            if due is not None:
                self.capture(due, graphs)
            size = graphs.captured_for(num_tokens)
        return None if size is None else graphs.of_size(size)

    def capture(self, size: int, graphs: "StepGraphs") -> None:
        """Capture one graph."""
        self.num_captured += 1
        with self._ranks.capture(size, is_mixed=graphs.is_mixed):
            self._stream.run(torch.inference_mode()(lambda: graphs.capture(size)))

    def capture_at_load(self) -> None:
        """Capture the graphs that are wanted from the first request on; the others follow as steps miss them."""
        # Mixed batches have the largest graphs: the memory of the other graphs fits into theirs.
        for graphs in (self.mixed, self.decodes):
            for size in () if graphs is None else graphs.sizes_at_load:
                if graphs is not None and size in graphs.sizes_at_load:  # a failed capture takes its graphs away
                    self.capture(size, graphs)

    def _next_idle(self) -> "tuple[StepGraphs, int] | None":
        pairs = ((graphs, graphs.next_idle()) for graphs in (self.decodes, self.mixed) if graphs is not None)
        return next(((graphs, size) for graphs, size in pairs if size is not None), None)

    @property
    def has_idle_work(self) -> bool:
        """True if there is a graph to capture while there are no requests."""
        return self._next_idle() is not None

    def do_idle_work(self) -> None:
        """Capture one graph: about as much work as a step or two."""
        due = self._next_idle()
        if due is not None:
            graphs, size = due
            self.capture(size, graphs)
