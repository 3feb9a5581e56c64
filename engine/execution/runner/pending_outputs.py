"""Collection, the last stage of a step: brings its results to the host. PendingOutputs: results on their way."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...core.batch import NO_OUTPUT, BatchRow, RowFailure, RowOutput
from ...core.request import Request
from ...device import Stream, copy, host_tensor
from ..sampling.acceptance import NOT_FINITE, Acceptance
from ..sampling.prompt_logprobs import prompt_logprobs
from ..sampling.sampled import NOT_FINITE_TOKEN, Sampled, SampledLogprobs
from .pooled_rows import pooled_outputs
from .step import Step
from .transfer import HostBuffer


class Collection:
    """Collection of the results of one model's steps."""

    def __init__(self, model: Any, stream: Stream, device: torch.device) -> None:
        """`model` is a Decoder, for prompt logprobs."""
        self._model = model
        self._stream = stream
        self._device = device

    def collect(self, step: Step) -> "PendingOutputs":
        """Queue the copies of a step's results to the host, if the step has memory there."""
        results = None
        if step.host is not None:
            results = self._host_results(step, step.host)
            self._receive(step, results)
        return PendingOutputs(step, results, self._model)

    def _host_results(self, step: Step, host: HostBuffer) -> Sampled:
        """Return the memory for a step's results, but for raw logits; only token ids come of a plain step."""
        samples, device = step.samples, self._device
        num_rows = len(samples.requests)
        token_ids = host.tokens[:num_rows]
        if samples.is_plain:
            return Sampled(token_ids, torch.empty(0))
        largest, num_logprobs = host_tensor(num_rows, dtype=torch.float32, device=device), samples.num_logprobs
        if not num_logprobs:
            return Sampled(token_ids, largest)
        top = num_logprobs, min(samples.num_top, self._model.config.vocab_size)
        logprobs = SampledLogprobs(
            host_tensor(num_logprobs, dtype=torch.float32, device=device),
            host_tensor(num_logprobs, dtype=torch.int64, device=device),
            host_tensor(*top, dtype=torch.int64, device=device),
            host_tensor(*top, dtype=torch.float32, device=device),
        )
        return Sampled(token_ids, largest, logprobs)

    def _receive(self, step: Step, results: Sampled) -> None:
        if step.samples.requests:
            self._stream.run(lambda: _copy_results(step, results))
        if step.graph is not None and step.num_logits > len(step.samples.requests):
            self._stream.run(lambda: _keep_states(step))
        self.release(step)

    def release(self, step: Step) -> None:
        """Let a step's memory of the host be used again when the work queued so far has been done."""
        if step.host is not None:
            step.host.event = self._stream.record()


@dataclass(slots=True)
class PendingOutputs:
    """Outputs of a step whose results are on their way to the host."""

    step: Step | None  # until the outputs are there
    results: Sampled | None  # the host's copy; None for a step in memory that the host can read
    model: Any
    replaced: set[Request] = field(default_factory=set)  # requests whose grammar took another token than the sampled
    _outputs: list[RowOutput] | None = None
    _error: Exception | None = None

    def wait(self) -> list[RowOutput]:
        """Return one output per row; the grammars have taken their tokens then. Raises the error of the device."""
        if self._error is not None:
            raise self._error
        if self._outputs is None:
            assert self.step is not None
            try:
                if self.step.host is not None and self.step.host.event is not None:
                    self.step.host.event.wait()
                self._outputs = self._all_outputs(self.step)
            except Exception as exc:
                self._error = exc
                raise
            finally:
                self.step = self.results = None  # frees their memory
        return self._outputs

    def _all_outputs(self, step: Step) -> list[RowOutput]:
        outputs = self._sampled_outputs(step, self._on_host(step.sampled)) if step.samples.requests else []
        if len(outputs) < len(step.rows):
            remaining = iter(outputs)
            sampled = {row.request for row in step.samples.rows}
            outputs = [next(remaining) if row.request in sampled else NO_OUTPUT for row in step.rows]
        if step.num_logits == len(step.samples.requests):
            return outputs
        return self._with_prompt_states(step, outputs)

    def _on_host(self, sampled: Sampled | None) -> Sampled:
        if self.results is not None:
            return self.results._replace(raw=None if sampled is None else sampled.raw)
        assert sampled is not None, "the stages come in their order"
        return sampled

    def _sampled_outputs(self, step: Step, sampled: Sampled) -> list[RowOutput]:
        rows, token_ids = step.samples.rows, sampled.token_ids.tolist()
        if step.samples.is_plain:
            return list(map(_output, token_ids))
        outputs = Acceptance(sampled, step.samples.requests).outputs(rows)
        if step.feeds_next:
            for row, output, token_id in zip(rows, outputs, token_ids, strict=True):
                if row.request.grammar is not None and output.token_ids != (token_id,):
                    self.replaced.add(row.request)
        return outputs

    def _with_prompt_states(self, step: Step, outputs: Sequence[RowOutput]) -> list[RowOutput]:
        """Add what the hidden states behind the samples' are for: prompt logprobs, then pooled rows."""
        assert step.hidden is not None
        counts = [len(row.prompt_logprob_positions) for row in step.rows]
        num_others = len(step.samples.requests) + sum(counts)
        states = torch.split(step.hidden[len(step.samples.requests) : num_others], counts)
        scored = list(map(self._scored, step.rows, outputs, states))
        return scored if num_others == step.num_logits else pooled_outputs(step.rows, scored, step.hidden[num_others:])

    def _scored(self, row: BatchRow, output: RowOutput, hidden: torch.Tensor) -> RowOutput:
        if not row.prompt_logprob_positions or output.failure is not None:
            return output
        scores = prompt_logprobs(row, hidden, self.model.logits, vocab_size=self.model.config.vocab_size)
        if scores is None:
            return RowOutput(failure=RowFailure(NOT_FINITE))
        return output._replace(prompt_logprobs=scores)


def _output(token_id: int) -> RowOutput:
    return RowOutput(failure=RowFailure(NOT_FINITE)) if token_id == NOT_FINITE_TOKEN else RowOutput((token_id,))


def _keep_states(step: Step) -> None:
    """Copy the hidden states, which the graph's next replay overwrites."""
    assert step.hidden is not None
    step.hidden = step.hidden.clone()


def _copy_results(step: Step, results: Sampled) -> None:
    """Copy results to the host, but for raw logits."""
    sampled = step.sampled
    assert sampled is not None
    copy(results.token_ids, sampled.token_ids)
    if not step.samples.is_plain:
        copy(results.largest, sampled.largest)
    for target, source in zip(results.logprobs or (), sampled.logprobs or (), strict=True):
        copy(target, source)
