"""DecodeGraphs: forward passes of decode batches, captured once and replayed without the host's work per kernel.

A graph is captured for a number of rows; a smaller batch is padded with rows that have no tokens in the cache (length
0) and write none (slot -1). It reads the inputs where TransferBuffers puts them and block tables of full width, so one
graph serves any length. `GraphCapturer` captures and replays.
"""

import gc
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..models.forward_inputs import Arrays, Inputs
from .batch_arrays import Bounds, as_inputs
from .transfer import layout_of, num_bytes, views

_log = logging.getLogger("splitfuse.engine")

# Steps that run without a graph between one capture amid requests and the next: each capture costs them a step or two,
# and the host's work of one. So no first token waits for a graph, and a load of many sizes gets its graphs bit by bit.
STEPS_BETWEEN_CAPTURES = 32

Forward = Callable[[Tensor, Inputs], Tensor]


class GraphCapturer(Protocol):
    """Captures work over tensors that stay where they are."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do the work, and return what does it again. Work must not wait for the device."""


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Numbers of rows for which there are graphs, falling: 1, 2, 4, each 8th up to 256, each 16th up to 512.

    vLLM's list. A batch is padded by less than 8 rows then, of the milliseconds that its weights take to read.
    """
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    fitting = [size for size in sizes if size < max_num_seqs]
    return tuple(reversed([*fitting, min(max_num_seqs, sizes[-1])]))


class DecodeGraphs:
    """The graphs there are, and which is captured next."""

    def __init__(
        self,
        forward: Forward,
        capturer: GraphCapturer,
        *,
        sizes: Iterable[int],
        buffer: Tensor,
        hidden: Tensor,
        tables: Tensor,
        max_model_len: int,
    ) -> None:
        """`forward` takes `inputs.unknown_sources` and the Inputs, gives hidden states [rows, H]. `sizes` are falling.

        buffer [bytes] uint8 is the device's; hidden [largest size, H] and tables [largest size, blocks of the longest
        sequence] int32 are the graphs' own.
        """
        self._forward = forward
        self._capturer = capturer
        self._sizes = list(sizes)
        self._buffer, self._hidden, self._tables = buffer, hidden, tables
        self._max_model_len = max_model_len
        self._replays: dict[int, Callable[[], None]] = {}
        self._num_eager = 0  # steps that could have had a graph

    def size_for(self, num_rows: int) -> int | None:
        """The smallest size that holds so many rows; None if none does."""
        return min((size for size in self._sizes if size >= num_rows), default=None)

    def has(self, size: int) -> bool:
        """Whether this size has been captured."""
        return size in self._replays

    def next_after_eager(self, size: int) -> int | None:
        """A step of this size has no graph: the size to capture now, if any.

        The largest comes first: the others' memory then fits into what it has taken.
        """
        self._num_eager += 1
        if self._num_eager % STEPS_BETWEEN_CAPTURES:
            return None
        return size if self._replays else self._sizes[0]

    def next_idle(self) -> int | None:
        """The size to capture while the engine is idle; None before a step could have used one, and in the end."""
        if not self._num_eager:
            return None
        return next((size for size in self._sizes if size not in self._replays), None)

    def capture(self, size: int) -> None:
        """Capture a graph. If that fails, there are no further ones, and those steps go on without."""
        fields = self._fill_with_padding(size)
        inputs = as_inputs({**fields, "block_tables": self._tables[:size]}, Bounds(size, 1, self._max_model_len))
        hidden = self._hidden[:size]
        try:
            self._replays[size] = self._capturer.capture(lambda: _put(hidden, self._forward(fields["sources"], inputs)))
        except Exception:
            _log.exception("no CUDA graph for %d rows; --enforce-eager does without them from the start", size)
            self._sizes = [each for each in self._sizes if each in self._replays]

    def _fill_with_padding(self, size: int) -> dict[str, Tensor]:
        arrays = padding(size)
        layout = layout_of(arrays)
        assert num_bytes(layout) <= len(self._buffer)
        fields = views(self._buffer, layout)
        for name, field in fields.items():
            field.copy_(torch.from_numpy(arrays[name]))
        return fields

    def replay(self, size: int, block_tables: Tensor) -> Tensor:
        """Hidden states [size, H] of the step whose inputs are in the buffer; block_tables [rows, blocks] int32."""
        num_rows, width = block_tables.shape
        self._tables[:num_rows, :width].copy_(block_tables)
        self._replays[size]()
        return self._hidden[:size]


def padding(size: int) -> Arrays:
    """The fields that a graph reads, of rows that are all padding; in the order in which a step sends them."""
    return {
        "sources": np.full(size, -1, dtype=np.int64),
        "token_ids": np.zeros(size, dtype=np.int64),
        "positions": np.zeros(size, dtype=np.int64),
        "slot_mapping": np.full(size, -1, dtype=np.int64),
        "query_start_loc": np.arange(size + 1, dtype=np.int32),
        "seq_lens": np.zeros(size, dtype=np.int32),
        "logits_indices": np.arange(size, dtype=np.int64),
    }


def pad(arrays: Arrays, size: int) -> Arrays:
    """The arrays of a decode batch, for a graph of this size; those that it does not read come last."""
    padded = padding(size)
    for name in ("sources", "token_ids", "positions", "slot_mapping", "seq_lens"):
        padded[name][: len(arrays[name])] = arrays[name]
    return {**padded, **{name: array for name, array in arrays.items() if name not in padded}}


def _put(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


class CudaGraphCapturer:
    """CUDA graphs that share one pool of memory, as they never run beside each other."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # the default one cannot capture

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()  # compiles kernels and has cuBLAS choose its own: neither may happen while capturing
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # what it frees may call CUDA, which a capture does not survive
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
        finally:
            if collects:
                gc.enable()
        current.wait_stream(self._stream)
        return graph.replay
