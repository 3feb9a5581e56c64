"""AsyncRunner: gives steps to the device without waiting for it. The tokens that a step samples stay there and feed
the next one; the host sees them later.

    host    write N+1 . . . . . . . . . . . . . . . read N's tokens
    device  |---- N: forward, sample ----|copy out|copy in|---- N+1: fill in N's tokens, forward, sample ----|

No step may wait for the device on its way: no .item(), no boolean index, no copy from or to memory that is not pinned.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ....kernels import ops
from ...core.batch import Batch, Moves
from ...core.request import Request
from ...device import Stream
from ..models.forward_inputs import Arrays, with_plans
from ..models.kv_cache import KVCache
from ..sampling.sampler import Sampler
from .cuda_graphs import GraphCapturer, StepGraphs, mixed_graph_sizes, num_tokens_of_a_launch, padding
from .forward_pass import Ranks
from .pending_outputs import PendingOutputs
from .rehearsal import StepLimits, compile_kernels, rehearse, rehearse_largest
from .stages import Stages
from .state_arrays import largest_states, padding_states
from .step import Step
from .transfer import TransferBuffers, layout_of, num_bytes


class AsyncRunner:
    """Launcher of one model's steps over one cache. Not for batches that need the host."""

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
        planner: Any = None,
        is_exact: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        """Make room for steps of `max_num_tokens` in `max_num_seqs` rows. `model` is a Decoder.

        `planner`: ops.decode_planner's. `is_exact`: see `ops.be_exact`.
        """
        self._model = model
        self._cache = cache
        self._stream = stream
        self._device = device
        self._limits = limits = StepLimits(max_num_tokens, max_num_seqs, max_model_len, cache.block_size, planner)
        self._sample_indices: dict[Request, int] = {}  # last step's
        self._pending: PendingOutputs | None = None  # last step's
        self._num_compiled = 0
        largest = _largest_arrays(limits, model.padding)
        most_samples = len(largest["keys"])
        self.buffers = TransferBuffers(num_bytes(layout_of(largest)), most_samples, device=device, stream=stream)
        self.stages = Stages(
            model,
            cache,
            device=device,
            stream=stream,
            transfer=self.buffers,
            sampler=sampler or Sampler(device),
            tokens=torch.zeros(most_samples, dtype=torch.int64, device=device),
            planner=planner,
            is_exact=is_exact,
            ranks=ranks,
        )
        self.graphs = self.stages.graphs

    def use_graphs(
        self, capturer: GraphCapturer, *, sizes: tuple[int, ...], hidden_size: int, dtype: torch.dtype
    ) -> None:
        """Let this capturer capture graphs from now on: of decodes of up to sizes[0] rows, and of mixed batches."""

        def graphs(sizes: tuple[int, ...], num_rows: int | None = None, max_padding: int | None = None) -> StepGraphs:
            table = (num_rows or sizes[0], self._limits.table_width)
            return StepGraphs(
                self.stages.forward_pass.forward,
                capturer,
                sizes=sizes,
                buffer=self.buffers.device_buffer,
                hidden=torch.zeros((sizes[0], hidden_size), dtype=dtype, device=self._device),
                tables=torch.zeros(table, dtype=torch.int32, device=self._device),
                max_model_len=self._limits.max_model_len,
                num_rows=num_rows,
                planner=self._limits.planner,
                max_padding=max_padding,
                more=self._more_padding,
            )

        num_rows = self._limits.max_num_seqs + 1  # no batch has the last row
        most = num_tokens_of_a_launch(self._model.config)
        mixed = graphs(mixed_graph_sizes(self._limits.max_num_tokens, most), num_rows, most // 4)
        self.graphs.use(decodes=graphs(sizes), mixed=mixed)

    def _more_padding(self, num_rows: int, num_tokens: int) -> Arrays:
        """Return the fields that this model's steps have beside a plain decoder's, as GraphPadding says."""
        states = padding_states(num_rows, num_rows + num_tokens) if self._model.config.is_recurrent else {}
        return {**states, **self._model.padding(num_tokens)}

    @torch.inference_mode()
    def move(self, moves: Moves) -> None:
        """Queue copies of blocks."""
        self._stream.run(lambda: self._cache.copy_blocks(**moves._asdict()))

    @torch.inference_mode()
    def launch(self, batch: Batch) -> PendingOutputs | None:
        """Queue a step, and return its outputs on their way.

        None if a grammar took another token than the last step sampled: then this step computes from a wrong token.
        """
        stages = self.stages
        step = stages.preparation.prepare(batch, self._sample_indices)
        stages.forward_pass.run(step)
        self._sample_indices = dict(zip(step.samples.requests, range(len(step.samples.requests)), strict=True))
        if not self._grammars_agree(step):
            self._pending = None
            stages.collection.release(step)
            return None
        stages.sampling_pass.run(step)
        self._pending = stages.collection.collect(step)
        return self._pending

    def _grammars_agree(self, step: Step) -> bool:
        """Wait for the last step if a grammar needs its token. True if the device has the tokens that grammars took.

        The wait costs little: this step's forward pass is already behind the last step in the device's queue.
        """
        waiting = [row.request for _, row in step.samples.constrained if row.end > row.request.num_tokens]
        if not waiting:
            return True
        assert self._pending is not None, "the token comes from the last step"
        self._pending.wait()
        return self._pending.replaced.isdisjoint(waiting)

    # Before the first request.

    def compile_kernels(self) -> None:
        """Compile the kernels of every step to come, side by side, so that no step waits for the compiler."""
        compile_kernels(self.rehearse, self._device)

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Launch every kernel that a step may launch, over padding."""
        rehearse(self.stages.forward_pass, self._model, self._limits, has_graphs=self.graphs.mixed is not None)
        self._cache.copy_blocks(swap_out=[], swap_in=[], copies=[(0, 0)])

    @torch.inference_mode()
    def rehearse_largest(self) -> None:
        """Run the steps that take the most memory, over padding."""
        rehearse_largest(self.stages.forward_pass, self._model, self._limits)

    def capture_graphs(self) -> None:
        """Capture the graphs that are wanted from the first request on."""
        self.graphs.capture_at_load()

    def count_late_work(self) -> None:
        """Let `stats` count work from now on, when the engine is ready: such work should have been done before."""
        self.graphs.num_captured = self._num_compiled = 0
        ops.when_compiled(self._device, self._count_compiled)

    def _count_compiled(self) -> None:
        self._num_compiled += 1

    def stats(self) -> dict[str, int]:
        """Return the numbers of kernels compiled and graphs captured while serving."""
        return {"kernels_compiled": self._num_compiled, "cuda_graphs_captured": self.graphs.num_captured}

    # While there are no requests.

    @property
    def has_idle_work(self) -> bool:
        """True if there is a graph to capture."""
        return self.graphs.has_idle_work

    def do_idle_work(self) -> None:
        """Capture a graph."""
        self.graphs.do_idle_work()


def _largest_arrays(limits: StepLimits, padding_of_model: Callable[[int], Arrays]) -> Arrays:
    """Return every field that a step can have, at its largest; no page of it is touched."""
    rows = limits.max_num_seqs + 8  # a graph may pad a few
    tokens = max(limits.max_num_tokens, rows)
    per_token = ("sources", "token_ids", "positions", "slot_mapping", "logits_indices")
    per_sample = ("keys", "temperature", "top_k", "top_p", "min_p")  # drafts are samples, too
    arrays: Arrays = {name: np.empty(tokens, dtype=np.int64) for name in per_token + per_sample}
    arrays |= {name: np.empty(rows + 1, dtype=np.int64) for name in ("query_start_loc", "seq_lens")}
    arrays |= largest_states(rows, tokens) | padding_of_model(tokens)
    plans = with_plans(padding(rows), limits.planner) or {}
    arrays |= {name: array for name, array in plans.items() if name not in arrays}
    return {**arrays, "block_tables": np.empty((rows, limits.table_width), dtype=np.int32)}
