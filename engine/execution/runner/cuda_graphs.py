"""StepGraphs: forward passes captured once and replayed without the host's work per kernel.

A graph is captured for a number of tokens and rows; a smaller batch is padded. A batch of decodes has as many rows as
tokens: the padding is rows that have no tokens in the cache (length 0) and write none (slot -1). A mixed batch is
padded to the most rows of any batch: the first row behind its own has length 0 and all tokens that are left, the
further rows have no token. A graph reads the inputs where TransferBuffers puts them and block tables of full width, so
one graph serves any length. What only some models read, states' slots and adapters' tiles, is padded, too
(`GraphPadding`). `GraphCapturer` captures and replays.
"""

import gc
import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..models.config import ModelConfig
from ..models.forward_inputs import Arrays, Bounds, Inputs, with_plans
from .transfer import layout_of, num_bytes, views

_log = logging.getLogger("splitfuse.engine")

# Steps without a graph between two captures amid requests: a capture delays requests by a step or two, and by the host
# work of one step. So no first token waits for a graph, and a load of many sizes gets its graphs bit by bit.
STEPS_BETWEEN_CAPTURES = 32

# Host work to launch a layer's kernels, and operations of a GPU in a second. Estimates: 8 ms for an 8B's 32 layers.
_LAUNCH_SECONDS, _OPERATIONS = 250e-6, 600e12
# Device memory of a graph beside its pool: parameters of its kernels. An estimate; a capturer's `num_bytes` measures.
_GRAPH_BYTES = 2 * 2**20

Forward = Callable[[Tensor, Inputs], Tensor]
# Fields that only this model's graphs read, for (rows, tokens) that are all padding.
GraphPadding = Callable[[int, int], Arrays]


class GraphCapturer(Protocol):
    """Captures work over tensors that stay where they are."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do the work, and return a function that repeats it. Work must not wait for the device."""


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return the numbers of rows for which there are graphs, falling: 1, 2, 4, each 8th up to 256, each 16th up to 512.

    The list is vLLM's. Up to 256 rows it pads a batch by less than 8 rows, little beside the time to read the weights.
    """
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    return _falling(sizes, min(max_num_seqs, sizes[-1]))


def mixed_graph_sizes(max_num_tokens: int, most: int = 2048) -> tuple[int, ...]:
    """Return the numbers of tokens of mixed batches for which there are graphs, falling.

    Beyond `most` tokens (`num_tokens_of_a_launch`) a graph saves nothing.
    """
    sizes = [*range(64, 256, 64), *range(256, 1024, 128), *range(1024, 2049, 256)]
    return _falling(sizes, min(max_num_tokens, next((size for size in sizes if size >= most), sizes[-1])))


def num_tokens_of_a_launch(model: ModelConfig) -> int:
    """Return the number of tokens that a GPU computes while the host launches the kernels of a step.

    With more, launching hides behind the step before. 300 for an 8B, 3,000 for a 0.6B.
    """
    hidden, inner = model.hidden_size, model.intermediate_size
    if (experts := model.hf_config.get("experts")) is not None:
        inner = experts.num_experts_per_tok * experts.intermediate_size
    widths = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim
    operations_per_token = 2 * hidden * (widths + 3 * inner)
    return max(int(_LAUNCH_SECONDS * _OPERATIONS / operations_per_token), 1)


def graph_bytes(num_graphs: int) -> int:
    """Return the device memory of graphs beside their pool."""
    return num_graphs * _GRAPH_BYTES


def _falling(sizes: list[int], largest: int) -> tuple[int, ...]:
    return tuple(reversed([*(size for size in sizes if size < largest), largest]))


class StepGraphs:
    """Graphs of one kind of batch, and the order in which they are captured. A size is a number of tokens."""

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
        num_rows: int | None = None,
        planner: Any = None,
        max_padding: int | None = None,
        more: GraphPadding = lambda num_rows, num_tokens: {},
    ) -> None:
        """`forward` takes `token_sources` and the Inputs, returns hidden states [tokens, H]. `sizes` are falling.

        `num_rows` of each graph: more than any mixed batch has; None for decodes, which have as many rows as tokens.
        buffer [bytes] uint8 is the device's; hidden [most tokens, H] and tables [most rows, blocks of the longest
        sequence] int32 belong to the graphs.
        """
        self._forward = forward
        self._capturer = capturer
        self._sizes = list(sizes)
        self._buffer, self._hidden, self._tables = buffer, hidden, tables
        self._max_model_len = max_model_len
        self._num_rows = num_rows
        self._planner = planner  # ops.decode_planner's
        self._more: dict[int, Arrays] = {size: more(num_rows or size, size) for size in self._sizes}
        self._max_padding = max_padding  # most tokens that pad a step which has no graph of its own size yet; None: any
        self._replays: dict[int, Callable[[], None]] = {}
        self._num_eager = 0  # steps that could have had a graph of their size

    @property
    def is_mixed(self) -> bool:
        """True for graphs of mixed batches."""
        return self._num_rows is not None

    @property
    def sizes_at_load(self) -> list[int]:
        """Sizes to capture before the first request, falling: with these no step is padded to twice its size."""
        return [size for size in self._sizes if size == self._sizes[0] or size & (size - 1) == 0]

    def size_for(self, num_tokens: int) -> int | None:
        """Return the smallest size that holds this number of tokens; None if there is none."""
        return min((size for size in self._sizes if size >= num_tokens), default=None)

    def captured_for(self, num_tokens: int) -> int | None:
        """Like `size_for`, but among captured sizes that do not pad too much."""
        most = num_tokens + self._max_padding if self._max_padding is not None else float("inf")
        return min((size for size in self._replays if num_tokens <= size <= most), default=None)

    def has(self, size: int) -> bool:
        """True if this size has been captured."""
        return size in self._replays

    def of_size(self, size: int) -> "StepGraph":
        """Return the captured graph of this size."""
        return StepGraph(self, size)

    def next_after_eager(self, size: int) -> int | None:
        """Count a step of this size that has no graph of its own. Return the size to capture now, if any.

        The largest size comes first: the memory of the other graphs then fits into its memory.
        """
        self._num_eager += 1
        if self._num_eager % STEPS_BETWEEN_CAPTURES:
            return None
        return size if self._replays else self._sizes[0]

    def next_idle(self) -> int | None:
        """Return the size to capture while the engine is idle.

        None before the first step that could have used a graph, and when all sizes have been captured.
        """
        if not self._num_eager:
            return None
        return next((size for size in self._sizes if size not in self._replays), None)

    def capture(self, size: int) -> None:
        """Capture a graph. If that fails, no further graph is captured, and its steps go on without one."""
        num_rows, fields = self._num_rows or size, self._fill_with_padding(size)
        inputs = Inputs.of({**fields, "block_tables": self._tables[:num_rows]}, self._bounds(size))
        hidden = self._hidden[:size]
        try:
            self._replays[size] = self._capturer.capture(lambda: _put(hidden, self._forward(fields["sources"], inputs)))
        except Exception:
            _log.exception("no CUDA graph for %d tokens; --enforce-eager does without them from the start", size)
            self._sizes = [size for size in self._sizes if size in self._replays]

    def _bounds(self, size: int) -> Bounds:
        if self._num_rows is None:
            return Bounds(size, 1, self._max_model_len)
        return Bounds(None, size, self._max_model_len)

    def _fill_with_padding(self, size: int) -> dict[str, Tensor]:
        arrays = with_plans(padding(size, self._num_rows, self._more[size]), self._planner)
        assert arrays is not None, "padding needs the least"
        layout = layout_of(arrays)
        assert num_bytes(layout) <= len(self._buffer)
        fields = views(self._buffer, layout)
        for name, field in fields.items():
            field.copy_(torch.from_numpy(arrays[name]))
        return fields

    def pad(self, arrays: Arrays, size: int) -> Arrays | None:
        """Pad the arrays of a batch for the graph of this size; None if the work lists have no room."""
        return pad(arrays, size, self._num_rows, self._planner, self._more[size])

    def replay(self, size: int, block_tables: Tensor) -> Tensor:
        """Return hidden states [size, H] for the inputs in the buffer and block_tables [rows of the step, blocks]."""
        num_own, width = block_tables.shape
        self._tables[:num_own, :width].copy_(block_tables)
        self._replays[size]()
        return self._hidden[:size]


class StepGraph(NamedTuple):
    """Graph that serves a step."""

    graphs: StepGraphs
    size: int

    def pad(self, arrays: Arrays) -> Arrays | None:
        """Like StepGraphs.pad, but for this size."""
        return self.graphs.pad(arrays, self.size)

    def replay(self, block_tables: Tensor) -> Tensor:
        """Like StepGraphs.replay, but for this size."""
        return self.graphs.replay(self.size, block_tables)


def padding(num_tokens: int, num_rows: int | None = None, more: Arrays | None = None) -> Arrays:
    """Return the fields that a graph reads, in the order in which a step sends them, for rows that are all padding."""
    rows = num_rows or num_tokens
    starts = np.arange(rows + 1) if num_rows is None else np.minimum(np.arange(rows + 1), 1) * num_tokens
    return {
        "sources": np.full(min(rows, num_tokens), -1, dtype=np.int64),
        "token_ids": np.zeros(num_tokens, dtype=np.int64),
        "positions": np.zeros(num_tokens, dtype=np.int64),
        "slot_mapping": np.full(num_tokens, -1, dtype=np.int64),
        "query_start_loc": starts.astype(np.int32),
        "seq_lens": np.zeros(rows, dtype=np.int32),
        "logits_indices": np.arange(num_tokens),  # the most there can be: all tokens but a row's first are drafts
        **{name: array.copy() for name, array in (more or {}).items()},
    }


def pad(
    arrays: Arrays, num_tokens: int, num_rows: int | None = None, planner: Any = None, more: Arrays | None = None
) -> Arrays | None:
    """Pad the arrays of a batch for a graph of this many tokens and rows; arrays that no graph reads come last.

    Without "sources" all tokens are known. None if the work lists of the planner or of adapters are larger than a
    graph's.
    """
    padded = padding(num_tokens, num_rows, more)
    for name in padded.keys() & arrays.keys():
        if len(arrays[name]) > len(padded[name]):
            return None
        padded[name][: len(arrays[name])] = arrays[name]
    if (loc := padded.get("state_checkpoint_loc")) is not None:
        loc[len(arrays["state_checkpoint_loc"]) :] = loc.max()  # rows of padding have no checkpoints
    planned = with_plans(padded, planner)
    return planned and {**planned, **{name: array for name, array in arrays.items() if name not in padded}}


def _put(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


class CudaGraphCapturer:
    """Capturer of CUDA graphs. They share one pool of memory, because no two graphs run at once."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # the default stream cannot capture
        self.num_bytes = 0  # device memory that captures took, with their pool

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        free, _ = torch.cuda.mem_get_info()
        work()  # compiles kernels and lets cuBLAS choose its own; neither may happen during a capture
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        gc.disable()  # a collection may call CUDA, which a capture does not survive
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
        self.num_bytes += max(free - torch.cuda.mem_get_info()[0], 0)
        return graph.replay
