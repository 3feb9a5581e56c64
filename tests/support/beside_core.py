"""Parts beside the core for simulated worlds: the shipped ones, or stand-ins with pytest --core-alone.

With the stand-ins a world needs nothing of splitfuse but engine/core, config, errors and checks.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from splitfuse.engine.core.batch import Batch, Progress, RowOutput
from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.core.outputs import KnownOutput, OutputDelta, PromptLogprobs
from splitfuse.engine.core.ports import Decoded, Drafted, OutputBuilder, Pacer, RequestObserver, Speculator
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.errors import RequestFailedError

CORE_ALONE = "SPLITFUSE_TEST_CORE_ALONE" in os.environ


class PlainOutputs:
    """OutputBuilder that uses a world's FakeText as texts."""

    def __init__(self, _tokenizer: None = None) -> None:
        self._texts: dict[Request, Any] = {}
        self._prompt_logprobs: dict[Request, PromptLogprobs] = {}

    def add(self, request: Request) -> None:
        if request.needs_prompt_logprobs:
            self._prompt_logprobs[request] = PromptLogprobs(request.params.prompt_logprobs or 0)

    def forget(self, request: Request) -> None:
        self._texts.pop(request, None)
        self._prompt_logprobs.pop(request, None)

    def keep_prompt_logprobs(self, batch: Batch, outputs: Sequence[RowOutput]) -> None:
        for row, output in zip(batch.rows, outputs, strict=True):
            if output.prompt_logprobs is not None and row.request in self._prompt_logprobs:
                self._prompt_logprobs[row.request].extend(output.prompt_logprobs)

    def decode(self, progress: Progress) -> Decoded:
        request, output = progress.request, progress.output
        error = None
        if output.failure is not None:
            error = RequestFailedError(output.failure.message, error_id=output.failure.error_id or "none")
        stream: Any = self._texts.get(request)
        num_left = len(output.token_ids)
        for token_id in output.token_ids if stream is not None else ():
            num_left -= 1
            num_tokens = request.num_output_tokens - num_left
            is_last = request.is_finished and not num_left
            is_end = is_last and request.finish_reason == "stop" and token_id in request.stop_token_ids
            try:
                stream.push(None if is_end else token_id, last=is_last, may_stop=num_tokens > request.params.min_tokens)
            except ValueError as exc:
                return Decoded("", num_left, has_failed=True, error=RequestFailedError(str(exc), error_id="none"))
            if stream.stopped_by is not None:
                return Decoded("", num_left, stop=stream.stopped_by, error=error)
        return Decoded(error=error)

    def delta(self, progress: Progress, decoded: Decoded) -> OutputDelta:
        request, output = progress.request, progress.output
        if decoded.num_dropped:
            output = output.first(len(output.token_ids) - decoded.num_dropped)
        return OutputDelta(
            request.request_id,
            request.index,
            decoded.text,
            output.token_ids,
            output.logprobs,
            finish_reason="error" if decoded.error else request.finish_reason,
            stop_reason=request.stop_reason,
            metrics=None if request.finish_reason is None else request.metrics(),
            error=decoded.error,
            prompt_logprobs=self._prompt_logprobs.pop(request, None) if output.token_ids else None,
            forced_from=output.forced_from,
        )


class PlainSpeculation:
    """Speculator that asks for the most drafts each time."""

    def __init__(
        self,
        drafter: Any,
        *,
        max_drafts: int,
        vocab_size: int,
        adaptive: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._drafter, self._max_drafts, self._vocab_size = drafter, max_drafts, vocab_size
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0

    def skips_step(self) -> bool:
        return False

    def choose(self, running: Sequence[Request]) -> dict[Request, int]:
        return dict.fromkeys([request for request in running if request.num_uncomputed_tokens == 1], self._max_drafts)

    def draft(self, batch: Batch) -> Batch:
        wanted = {row.request: row.num_drafts for row in batch.rows if row.num_drafts}
        try:
            drafts: Mapping[Request, Sequence[int]] = self._drafter.draft(wanted)
        except Exception:
            drafts = {}
        rows = []
        for row in batch.rows:
            usable = []
            for token_id in drafts.get(row.request, ())[: row.num_drafts]:
                if not 0 <= token_id < self._vocab_size:
                    break
                usable.append(token_id)
            rows.append(row.with_drafts(usable) if row.num_drafts else row)
        return batch.subset(sorted(rows, key=lambda row: row.num_tokens > 1))

    def observe(self, batch: Batch, outputs: Sequence[RowOutput], seconds: float) -> list[Drafted]:
        drafted = [Drafted(output.num_drafts, len(output.token_ids) - 1) for output in outputs if output.num_drafts]
        self.num_drafts += len(drafted)
        self.num_draft_tokens += sum(row.num_drafted for row in drafted)
        self.num_accepted_tokens += sum(row.num_accepted for row in drafted)
        return drafted

    def forget(self, request: Request) -> None: ...
    def forget_ended(self) -> None: ...
    def to_dict(self) -> dict[str, Any]:
        return {}


@dataclass
class PlainPrompt:
    """Prompt of token ids, with its parameters."""

    token_ids: list[int]
    params: SamplingParams


class PlainInput:
    """Input processor that makes the n requests of a prompt."""

    def __init__(self, *, model_config: Any, max_model_len: int, max_cache_tokens: int, seed: int, **_: Any) -> None:
        self._eos_token_ids = frozenset(model_config.eos_token_ids)
        self._most = min(max_model_len, max_cache_tokens)
        self._seed = seed or 0

    def requests(self, request_id: str, tokenized: PlainPrompt, *, now: float, tenant: str = "") -> list[Request]:
        params, requests = tokenized.params, list[Request]()
        self._seed += 1
        assert params.max_tokens is not None
        for index in range(params.n):
            request = Request(
                request_id=request_id,
                index=index,
                prompt_token_ids=tokenized.token_ids,
                params=params,
                max_num_tokens=min(self._most, len(tokenized.token_ids) + params.max_tokens),
                seed=self._seed * 1_000_003 + index,
                stop_token_ids=frozenset() if params.ignore_eos else self._eos_token_ids,
                tenant=tenant,
                parent=requests[0] if requests else None,
                arrival_time=now,
                known=KnownOutput(),
            )
            requests.append(request)
        return requests


if CORE_ALONE:
    InputProcessor: Any = PlainInput
    TokenizedPrompt: Any = PlainPrompt
    OutputProcessor: Callable[[None], OutputBuilder] = PlainOutputs
    Speculation: Any = PlainSpeculation
else:
    from splitfuse.engine.extras.spec_decode.manager import Speculation
    from splitfuse.engine.serving.input_processor import InputProcessor, TokenizedPrompt
    from splitfuse.engine.serving.output_processor import OutputProcessor


def pacer_of(config: Any, model: CostModel) -> Pacer | None:
    """Return the DeadlinePacer of a core; None where the core is alone."""
    if CORE_ALONE:
        return None
    from splitfuse.engine.extras.deadlines.pacer import DeadlinePacer

    return DeadlinePacer(config, model)


def observer_of(config: Any) -> RequestObserver | None:
    """Return the Histories of a scheduler; None where the core is alone."""
    if CORE_ALONE:
        return None
    from splitfuse.engine.extras.inspection.histories import Histories

    return Histories.of(config)


def recorder_of(stream: TextIO, *arguments: Any) -> Any:
    """Return a Recorder; worlds are not recorded where the core is alone."""
    from splitfuse.engine.extras.simulation.recording import Recorder

    return Recorder(stream, *arguments)


__all__ = ["CORE_ALONE", "InputProcessor", "OutputProcessor", "Speculation", "Speculator", "TokenizedPrompt"]
