"""LaunchedStep: a step on the device, and PendingTokens: what of it is on its way to the host."""

from dataclasses import dataclass, field

from torch import Tensor

from ...core.batch import NO_OUTPUT, BatchRow, RowFailure, RowOutput
from ...core.request import Request
from ...device import Event
from ..sampling.acceptance import NOT_FINITE, Acceptance
from ..sampling.sample_index import SampleIndex
from ..sampling.sampled import NOT_FINITE_TOKEN, Sampled
from .batch_arrays import Bounds
from .cuda_graphs import StepGraphs
from .transfer import HostBuffer


@dataclass(slots=True)
class LaunchedStep:
    """What the device reads of a step, and what it makes on its way."""

    fields: dict[str, Tensor]
    bounds: Bounds
    tokens: Tensor  # [S] int64 of the runner's, to be filled in
    graphs: StepGraphs | None = None
    graph_size: int | None = None
    num_top: int = 0  # likeliest tokens to find for logprobs
    has_more: bool = False  # there are rows that need more than filters
    hidden: Tensor | None = None
    sampled: Sampled | None = None


@dataclass(slots=True)
class PendingTokens:
    """A step's tokens on their way to the host."""

    host: HostBuffer
    event: Event
    rows: list[BatchRow]
    step: LaunchedStep | None
    results: Sampled | None  # beside tokens, on the host; None if no row needs more
    replaced: set[Request] = field(default_factory=set)  # whose grammar took another token than the one on the device
    _outputs: list[RowOutput] | None = None
    _error: Exception | None = None

    def wait(self) -> list[RowOutput]:
        """One output per row; grammars have taken their tokens then. Raises what went wrong on the device."""
        if self._error is not None:
            raise self._error
        if self._outputs is None:
            try:
                self.event.wait()
                self._outputs = self._make_outputs()
            except Exception as exc:
                self._error = exc
                raise
            finally:
                self.step = self.results = None  # their memory
        return self._outputs

    def _make_outputs(self) -> list[RowOutput]:
        rows = [row for row in self.rows if row.needs_sampling]
        tokens = self.host.tokens[: len(rows)]
        if self.results is None:
            outputs = list(map(_output, tokens.tolist()))
        else:
            outputs = self._accepted(rows, self.results._replace(token_ids=tokens))
        if len(rows) == len(self.rows):
            return outputs
        made = iter(outputs)
        return [next(made) if row.needs_sampling else NO_OUTPUT for row in self.rows]

    def _accepted(self, rows: list[BatchRow], sampled: Sampled) -> list[RowOutput]:
        assert self.step is not None
        assert self.step.sampled is not None
        sampled = sampled._replace(raw=self.step.sampled.raw)
        accept = Acceptance(sampled, [SampleIndex(row.request) for row in rows])
        # Of one that is finished the grammar may have ended with the step before.
        outputs = [
            NO_OUTPUT if row.request.is_finished else accept.output(row, index) for index, row in enumerate(rows)
        ]
        for row, output, token_id in zip(rows, outputs, sampled.token_ids.tolist(), strict=True):
            if row.request.grammar is not None and output.token_ids != (token_id,):
                self.replaced.add(row.request)
        return outputs


def _output(token_id: int) -> RowOutput:
    return RowOutput(failure=RowFailure(NOT_FINITE)) if token_id == NOT_FINITE_TOKEN else RowOutput((token_id,))
