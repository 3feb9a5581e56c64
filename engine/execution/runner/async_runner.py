"""AsyncRunner: gives steps to the device without waiting for it. The tokens that a step samples stay there and feed
the next one; the host sees them later.

    host    write N+1 . . . . . . . . . . . . . . . read N's tokens
    device  |---- N: forward, sample ----|copy out|copy in|---- N+1: fill in N's tokens, forward, sample ----|

No step may wait for the device on its way: no .item(), no boolean index, no copy from or to memory that is not pinned.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....kernels import ops
from ...core.batch import Batch, BatchRow, Moves
from ...core.block_allocator import num_blocks_for
from ...core.constraint import TokenConstraint
from ...core.request import Request
from ...device import Stream
from ...errors import is_out_of_memory
from ..models.forward_inputs import Arrays, Inputs
from ..models.kv_cache import KVCache
from ..sampling.sample_index import SampleIndex
from ..sampling.sampled import Sampled, SampledLogprobs
from ..sampling.sampler import Sampler, caught_up, num_top_logprobs, sample, sample_token_ids, sampling_arrays
from .batch_arrays import Bounds, as_inputs, input_arrays, unknown_sources
from .cuda_graphs import GraphCapturer, StepGraphs, graph_sizes, mixed_graph_sizes, padding
from .launched_step import LaunchedStep, PendingTokens
from .transfer import TransferBuffers, layout_of, num_bytes

_log = logging.getLogger("splitfuse.engine")


class AsyncRunner:
    """Launches steps of one model over one cache. Not for batches that need the host."""

    def __init__(
        self,
        model: Any,
        cache: KVCache,
        stream: Stream,
        *,
        device: torch.device,
        max_num_tokens: int,
        max_num_seqs: int,
        max_model_len: int,
        sampler: Sampler | None = None,
    ) -> None:
        """Room for steps of `max_num_tokens` in `max_num_seqs` rows. `model` is a Decoder."""
        self._model = model
        self._cache = cache
        self._stream = stream
        self._tokens = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)  # the last step's, by sample index
        self._sample_indices: dict[Request, int] = {}
        self._sampler = sampler or Sampler(device)
        self._pending: PendingTokens | None = None  # of the last step
        self._num_compiled = self._num_captured = 0
        self._table_width = num_blocks_for(max_model_len, cache.block_size)
        largest = _largest_arrays(max_num_tokens, max_num_seqs, self._table_width)
        self.buffers = TransferBuffers(num_bytes(layout_of(largest)), max_num_seqs, device=device, stream=stream)
        self._max_num_tokens, self._max_model_len = max_num_tokens, max_model_len
        self._graphs: StepGraphs | None = None
        self._mixed_graphs: StepGraphs | None = None

    def use_graphs(
        self, capturer: GraphCapturer, *, sizes: tuple[int, ...], hidden_size: int, dtype: torch.dtype
    ) -> None:
        """From now on batches are captured with this and replayed: decodes of up to sizes[0] rows, and mixed ones."""

        def graphs(sizes: tuple[int, ...], num_rows: int | None = None) -> StepGraphs:
            device, most_rows = self._tokens.device, num_rows or sizes[0]
            return StepGraphs(
                self._forward,
                capturer,
                sizes=sizes,
                buffer=self.buffers.device_buffer,
                hidden=torch.zeros((sizes[0], hidden_size), dtype=dtype, device=device),
                tables=torch.zeros((most_rows, self._table_width), dtype=torch.int32, device=device),
                max_model_len=self._max_model_len,
                num_rows=num_rows,
            )

        num_rows = len(self._tokens) + 1  # the last is never a batch's own
        self._graphs = graphs(sizes)
        self._mixed_graphs = graphs(mixed_graph_sizes(self._max_num_tokens), num_rows)

    def compile_kernels(self) -> None:
        """Those of every step to come, side by side: none waits for the compiler later."""
        compile_kernels(self.rehearse, self._tokens.device)

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Launch every kernel that a step may launch, over padding.

        Which ones these are depends on the numbers of rows and tokens, on whether rows can be long, and on what
        sampling reads.
        """
        longest, num_rows = self._max_model_len, len(self._tokens)
        for size in (*graph_sizes(num_rows), num_rows):
            self._rehearse_sampling(self._rehearse_forward(padding(size), Bounds(size, 1, longest)))
            self._rehearse_forward(padding(size), Bounds(size, 1, 1))
        sizes = mixed_graph_sizes(self._max_num_tokens)
        for size in (2, 8, *sizes, self._max_num_tokens):
            self._rehearse_forward(padding(size, 1), Bounds(0, size, longest))
        for size in sizes if self._mixed_graphs is not None else ():
            self._rehearse_forward(padding(size, num_rows + 1), Bounds(None, size, longest))
        self._cache.copy_blocks(swap_out=[], swap_in=[], copies=[(0, 0)])

    @torch.inference_mode()
    def rehearse_largest(self) -> None:
        """The steps that take the most memory, over padding: all tokens and rows that there may be; then sampling."""
        longest, num_rows = self._max_model_len, len(self._tokens)
        self._rehearse_forward(padding(self._max_num_tokens, num_rows + 1), Bounds(None, self._max_num_tokens, longest))
        self._rehearse_sampling(self._rehearse_forward(padding(num_rows), Bounds(num_rows, 1, longest)))

    def _rehearse_forward(self, arrays: Arrays, bounds: Bounds) -> Tensor:
        tables = np.zeros((len(arrays["seq_lens"]), self._table_width), dtype=np.int32)
        arrays = {**arrays, "block_tables": tables}
        fields = {name: torch.from_numpy(array).to(self._tokens.device) for name, array in arrays.items()}
        return self._forward(fields["sources"], as_inputs(fields, bounds))

    def _rehearse_sampling(self, hidden: Tensor) -> None:
        logits, ones = self._model.logits(hidden).float(), torch.ones(len(hidden), device=hidden.device)
        fields = {"keys": ones.long(), "temperature": ones}
        sample_token_ids(logits, fields)
        sample_token_ids(logits, {**fields, "top_k": ones.int(), "top_p": ones, "min_p": ones})

    def count_late_work(self) -> None:
        """The engine is ready to serve: from now on `stats` counts what should have been done before."""
        self._num_captured = self._num_compiled = 0
        ops.when_compiled(self._tokens.device, self._count_compiled)

    def _count_compiled(self) -> None:
        self._num_compiled += 1

    def stats(self) -> dict[str, int]:
        """Kernels compiled and graphs captured while serving."""
        return {"kernels_compiled": self._num_compiled, "cuda_graphs_captured": self._num_captured}

    def capture_graphs(self) -> None:
        """Capture those that are wanted from the first request on; the others follow as they are missed."""
        for graphs in reversed(self._all_graphs):  # the largest first: the others' memory fits into what it takes
            for size in graphs.sizes_at_load:
                if size in graphs.sizes_at_load:  # none is left after one that failed
                    self._capture(size, graphs)

    def move(self, moves: Moves) -> None:
        """Have blocks copied."""
        self._stream.run(lambda: self._move(moves))

    @torch.inference_mode()
    def _move(self, moves: Moves) -> None:
        self._cache.copy_blocks(**moves._asdict())

    def launch(self, batch: Batch) -> PendingTokens | None:
        """Have the step computed. Its tokens come with the returned event.

        None if a grammar took another token than the one that was sampled in the step before: then this step computes
        what is wrong.
        """
        host = self.buffers.acquire()
        rows = [row for row in batch.rows if row.needs_sampling]
        arrays, bounds = input_arrays(batch, block_size=self._cache.block_size)
        arrays = {"sources": unknown_sources(batch, self._sample_indices), **arrays}
        graphs = self._graphs_for(batch, num_sampling=len(rows))
        size = None if graphs is None else self._graph_size(graphs, batch.num_tokens)
        if graphs is not None and size is not None:
            arrays = graphs.pad(arrays, size)
        requests = [row.request for row in rows]
        fields = self.buffers.send(host, {**arrays, **sampling_arrays(requests, (row.end for row in rows))})
        step = LaunchedStep(fields, bounds, self._tokens[: len(rows)], graphs, size)
        self._stream.run(lambda: self._compute(step))
        step.has_more = False in [request.is_plainly_sampled for request in requests]
        self._send_more(step, rows if step.has_more else [])
        is_right = not step.has_more or self._send_masks(step, rows)
        results = self._run_sampling(step, rows) if is_right else None
        self.buffers.receive(host, step.tokens)
        self._sample_indices = dict(zip(requests, range(len(rows)), strict=True))
        assert host.event is not None
        self._pending = PendingTokens(host, host.event, batch.rows, step, results) if is_right else None
        return self._pending

    def _send_more(self, step: LaunchedStep, rows: list[BatchRow]) -> None:
        """What is read of rows that need more than filters."""
        indices = [SampleIndex(row.request, (), row.end - row.request.num_tokens) for row in rows]
        if arrays := self._sampler.arrays(indices, vocab_size=self._model.config.vocab_size):
            step.fields |= self.buffers.send_more(arrays)

    def _send_masks(self, step: LaunchedStep, rows: list[BatchRow]) -> bool:
        """Make the grammars' masks while the device computes. Whether it computes the right tokens.

        A grammar needs the token of the step before, which comes when that has ended: this one's forward pass is
        behind it in the queue.
        """
        constrained = [(at, row) for at, row in enumerate(rows) if row.request.grammar is not None]
        if any(row.end > row.request.num_tokens for _, row in constrained):
            assert self._pending is not None, "the token comes from the step before"
            self._pending.wait()
            if any(row.request in self._pending.replaced for _, row in constrained):
                return False
        grammars = {at: _grammar_before(row) for at, row in constrained}
        going_on = {at: grammar for at, grammar in grammars.items() if grammar.finish_reason is None}
        if going_on:
            masks = self._sampler.masks.allowed(list(going_on.values()))
            for mask, (at, grammar) in zip(masks, going_on.items(), strict=True):
                token_id = grammar.forced_token_id
                # So that no other one is sampled, which would cost the next step. min_tokens may rule it out there.
                if token_id is not None and token_id not in rows[at].request.stop_token_ids:
                    self._sampler.masks.force(mask, token_id)
            step.fields |= {"grammar_rows": torch.tensor(list(going_on)), "grammar_masks": masks}
        return True

    def _run_sampling(self, step: LaunchedStep, rows: list[BatchRow]) -> Sampled | None:
        """Have the step's tokens sampled; what else comes of it, as it will be on the host."""
        if not rows:
            return None
        if not step.has_more:
            self._stream.run(lambda: self._sample(step))
            return None
        step.num_top = num_top_logprobs(row.request for row in rows)
        num_logprobs = sum(row.request.params.logprobs is not None for row in rows)
        results = self._host_results(len(rows), num_logprobs, min(step.num_top, self._model.config.vocab_size))
        self._stream.run(lambda: self._sample(step))
        self._stream.run(lambda: _copy_results(step, results))
        return results

    def _host_results(self, num_rows: int, num_logprobs: int, num_top: int) -> Sampled:
        tensor, floats = self.buffers.host_tensor, torch.float32
        logprobs = SampledLogprobs(
            tensor(num_logprobs, dtype=floats),
            tensor(num_logprobs, dtype=torch.int64),
            tensor(num_logprobs, num_top, dtype=torch.int64),
            tensor(num_logprobs, num_top, dtype=floats),
        )
        return Sampled(self._tokens, tensor(num_rows, dtype=floats), logprobs if num_logprobs else None)

    @torch.inference_mode()
    def hidden_states(self, batch: Batch) -> Tensor | None:
        """Of a batch all of whose tokens are known, at its `logits_indices`; None where no graph serves it.

        For batches that need the host. No other step is in flight.
        """
        counts = ((row.num_drafts + 1) * row.needs_sampling + len(row.prompt_logprob_positions) for row in batch.rows)
        num_logits = sum(counts)
        graphs = self._graphs_for(batch, num_sampling=num_logits)
        size = None if graphs is None else self._graph_size(graphs, batch.num_tokens)
        if graphs is None or size is None:
            return None
        arrays, _ = input_arrays(batch, block_size=self._cache.block_size)
        host, nothing = self.buffers.acquire(), np.empty(0, dtype=np.int64)
        fields = self.buffers.send(host, graphs.pad({"sources": nothing, **arrays}, size))
        hidden: list[Tensor] = []
        self._stream.run(lambda: hidden.append(graphs.replay(size, fields["block_tables"])[:num_logits]))
        self.buffers.receive(host, self._tokens[:0])
        assert host.event is not None
        host.event.wait()
        return hidden[0]

    @torch.inference_mode()
    def _compute(self, step: LaunchedStep) -> None:
        fields = step.fields
        if step.graphs is None or step.graph_size is None:
            step.hidden = self._forward(fields["sources"], as_inputs(fields, step.bounds))
        else:
            step.hidden = step.graphs.replay(step.graph_size, fields["block_tables"])[: len(step.tokens)]

    @torch.inference_mode()
    def _sample(self, step: LaunchedStep) -> None:
        assert step.hidden is not None
        fields, last_token_ids = step.fields, None
        if step.has_more:
            last_token_ids = fields["token_ids"].index_select(0, fields["logits_indices"][: len(step.tokens)])
        logits = self._model.logits(step.hidden)
        step.sampled = sample(logits, fields, self._sampler.masks, num_top=step.num_top, last_token_ids=last_token_ids)
        step.tokens.copy_(step.sampled.token_ids)

    def _forward(self, sources: Tensor, inputs: Inputs) -> Tensor:
        self._fill_in(inputs.token_ids, sources)
        return self._model.forward(inputs, self._cache)  # type: ignore[no-any-return]

    def _fill_in(self, token_ids: Tensor, sources: Tensor) -> None:
        """Put the last step's tokens where they were not known. A failed row has no token; what follows is dropped."""
        own = token_ids[: len(sources)]
        sampled = self._tokens.index_select(0, sources.clamp_min(0)).clamp_min_(0)
        own.copy_(torch.where(sources >= 0, sampled, own))

    # Graphs.

    @property
    def _all_graphs(self) -> list[StepGraphs]:
        return [graphs for graphs in (self._graphs, self._mixed_graphs) if graphs is not None]

    def _graphs_for(self, batch: Batch, *, num_sampling: int) -> StepGraphs | None:
        """The graphs of this kind of batch."""
        return self._graphs if batch.num_tokens == len(batch.rows) == num_sampling else self._mixed_graphs

    def _graph_size(self, graphs: StepGraphs, num_tokens: int) -> int | None:
        """The size of the graph that serves so many tokens, if one has been captured."""
        size = graphs.size_for(num_tokens)
        if size is None or graphs.has(size):
            return size
        due = graphs.next_after_eager(size)
        if due is not None:
            self._capture(due, graphs)
        return graphs.captured_for(num_tokens)

    def _capture(self, size: int, graphs: StepGraphs) -> None:
        self._num_captured += 1
        self._stream.run(torch.inference_mode()(lambda: graphs.capture(size)))

    def _next_idle(self) -> tuple[StepGraphs, int] | None:
        pairs = ((graphs, graphs.next_idle()) for graphs in self._all_graphs)
        return next(((graphs, size) for graphs, size in pairs if size is not None), None)

    @property
    def has_idle_work(self) -> bool:
        """Whether there is something to do while there are no requests."""
        return self._next_idle() is not None

    def do_idle_work(self) -> None:
        """A part of it: about as much as a step or two."""
        due = self._next_idle()
        if due is not None:
            graphs, size = due
            self._capture(size, graphs)


def compile_kernels(launch: Callable[[], None], device: torch.device) -> None:
    """Those that are launched here, side by side."""
    try:
        with ops.compile_ahead(device):
            launch()
    except Exception as exc:
        if is_out_of_memory(exc):
            raise
        _log.exception("not all kernels could be compiled ahead; they are compiled as they are needed")


def _grammar_before(row: BatchRow) -> TokenConstraint:
    """The row's grammar after the tokens before the one to sample; one that is in flight it has taken already."""
    request = row.request
    if row.end == request.num_tokens:
        return caught_up(request)
    assert request.grammar is not None
    return request.grammar


def _copy_results(step: LaunchedStep, results: Sampled) -> None:
    """To the host, but for tokens and raw logits."""
    made = step.sampled
    assert made is not None
    results.largest.copy_(made.largest, non_blocking=True)
    for target, source in zip(results.logprobs or (), made.logprobs or (), strict=True):
        target.copy_(source, non_blocking=True)


def _largest_arrays(max_num_tokens: int, max_num_seqs: int, table_width: int) -> Arrays:
    """Every field that a step can have, at its largest; no page of it is touched."""
    rows = max_num_seqs + 8  # a graph may pad a few
    tokens = max(max_num_tokens, rows)
    of_tokens = ("sources", "token_ids", "positions", "slot_mapping", "logits_indices")
    of_rows = ("query_start_loc", "seq_lens", "keys", "temperature", "top_k", "top_p", "min_p")
    arrays: Arrays = {name: np.empty(tokens, dtype=np.int64) for name in of_tokens}
    arrays |= {name: np.empty(rows + 1, dtype=np.int64) for name in of_rows}
    return {**arrays, "block_tables": np.empty((rows, table_width), dtype=np.int32)}
