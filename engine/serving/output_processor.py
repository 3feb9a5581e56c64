"""OutputProcessor: makes deltas of tokens: text up to a stop string, logprobs and errors, one delta a step.

It only decides; EngineCore applies stop strings and failures to the scheduler.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core.batch import Batch, Progress, RowFailure, RowOutput
from ..core.outputs import Logprob, OutputDelta, PromptLogprobs, TokenLogprobs
from ..core.ports import Decoded
from ..core.request import Request
from ..errors import FAILED_ON_REQUEST, ConstraintError, RequestFailedError, new_error_id
from ..language.text.detokenizer import TextStream
from ..language.text.tokenizer import Tokenizer
from .request_output import RequestOutput

_log = logging.getLogger("splitfuse.engine")


_NO_TEXT = Decoded()


class OutputProcessor:
    """OutputBuilder with one TextStream per output, and prompt logprobs until the first token."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """`tokenizer`: None for deltas without text."""
        self._tokenizer = tokenizer
        self._texts: dict[Request, TextStream] = {}
        self._prompt_logprobs: dict[Request, PromptLogprobs] = {}

    def add(self, request: Request) -> None:
        """Prepare for the tokens of a request. Clients have the text of its known output already."""
        params = request.params
        if request.needs_prompt_logprobs:
            self._prompt_logprobs[request] = PromptLogprobs(params.prompt_logprobs or 0)
        if self._tokenizer is not None:
            stream = self._texts[request] = TextStream(
                self._tokenizer,
                request.token_ids[: request.num_prompt_tokens],
                stop=params.stop,
                include_stop=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
            )
            known = request.token_ids[request.num_prompt_tokens :]
            for num_behind, token_id in zip(reversed(range(len(known))), known, strict=True):
                _push(request, stream, token_id, num_behind=num_behind)

    def forget(self, request: Request) -> None:
        """Drop the state of a request whose last delta has been made."""
        self._texts.pop(request, None)
        self._prompt_logprobs.pop(request, None)

    def keep_prompt_logprobs(self, batch: Batch, outputs: Sequence[RowOutput]) -> None:
        """Collect a step's prompt logprobs for the delta with the first token."""
        if not self._prompt_logprobs:
            return
        for row, output in zip(batch.rows, outputs, strict=True):
            if output.prompt_logprobs is not None and row.request in self._prompt_logprobs:  # else it has ended
                if row.prompt_logprob_positions.start == 1:  # the first, perhaps again (live_model.py)
                    self._prompt_logprobs[row.request] = PromptLogprobs(row.request.params.prompt_logprobs or 0)
                self._prompt_logprobs[row.request].extend(output.prompt_logprobs)

    def decode(self, progress: Progress) -> Decoded:
        """Return the text that is certain after these tokens, up to a stop string or a token that cannot be decoded."""
        request, output = progress.request, progress.output
        error = None if output.failure is None else _row_error(request, output.failure)
        stream = self._texts.get(request)
        if stream is None:
            return _NO_TEXT if error is None else Decoded(error=error)
        text, num_left = "", len(output.token_ids)
        for token_id in output.token_ids or (None,):
            num_left -= token_id is not None
            try:
                text += _push(request, stream, token_id, num_behind=num_left)
            except Exception as exc:  # a fault in the text of one request ends that request only
                return Decoded(text, num_left, has_failed=True, error=_text_error(request, exc))
            if stream.stopped_by is not None:
                return Decoded(text, num_left, stop=stream.stopped_by, error=error)
        return Decoded(text, error=error)

    def delta(self, progress: Progress, decoded: Decoded) -> OutputDelta:
        """Build the delta of a step, once `decoded` has been applied to the scheduler."""
        request, output = progress.request, progress.output
        if decoded.num_dropped:
            output = output.first(len(output.token_ids) - decoded.num_dropped)
        has_first = self._prompt_logprobs and progress.output.token_ids
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
            prompt_logprobs=self._prompt_logprobs.pop(request, None) if has_first else None,
            forced_from=output.forced_from,
        )


def _push(request: Request, stream: TextStream, token_id: int | None, *, num_behind: int) -> str:
    """Return the text that is certain with this token, which `num_behind` more tokens follow."""
    params = request.params
    is_last = request.is_finished and not num_behind
    is_end = is_last and request.finish_reason == "stop" and token_id in request.stop_token_ids
    return stream.push(
        None if is_end and not params.include_stop_str_in_output else token_id,
        last=is_last,
        may_stop=not params.min_tokens or request.num_output_tokens - num_behind > params.min_tokens,
    )


def _text_error(request: Request, exc: Exception) -> RequestFailedError:
    error_id = new_error_id()
    _log.error("request %s failed, error id %s", request.request_id, error_id, exc_info=exc)
    return RequestFailedError(f"{FAILED_ON_REQUEST} (error id {error_id})", error_id=error_id)


def _row_error(request: Request, failure: RowFailure) -> RequestFailedError:
    error_id = failure.error_id or new_error_id()
    if failure.param is not None:
        _log.info("request %s cannot be met: %s, error id %s", request.request_id, failure.message, error_id)
        return ConstraintError(failure.message, error_id=error_id, param=failure.param)
    if failure.error_id is None:  # nothing has been logged yet
        _log.error("request %s failed: %s, error id %s", request.request_id, failure.message, error_id)
    return RequestFailedError(f"{failure.message} (error id {error_id})", error_id=error_id)


class DecodedLogprob(Logprob):
    """Logprob with the text of its token."""

    text: str | None

    @property
    def decoded_token(self) -> str | None:
        """Text of the token; None without a tokenizer."""
        return self.text


@dataclass(frozen=True, slots=True)
class DecodedLogprobs(TokenLogprobs):
    """TokenLogprobs with the text of each token. `texts`: by token id, shared by all positions."""

    texts: Mapping[int, str] = field(kw_only=True, repr=False, compare=False)

    def __getitem__(self, token_id: int) -> DecodedLogprob:
        found = DecodedLogprob(*TokenLogprobs.__getitem__(self, token_id))  # slots=True breaks super()
        found.text = self.texts.get(token_id)
        return found


class TokenTexts:
    """Cache of the texts of single tokens, which adds them to logprobs."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def add(self, delta: OutputDelta, output: RequestOutput) -> None:
        """Append a delta to an output, both with DecodedLogprobs."""
        if delta.logprobs is not None:
            delta.logprobs = tuple(map(self._decoded, delta.logprobs))
        output.add(delta)
        if delta.prompt_logprobs is not None:
            output.prompt_logprobs = [None if item is None else self._decoded(item) for item in delta.prompt_logprobs]

    def _decoded(self, item: TokenLogprobs) -> DecodedLogprobs:
        if self._tokenizer is not None:
            for token_id in item.keys() - self._texts.keys():
                self._texts[token_id] = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return DecodedLogprobs(item.token_id, item.logprob, item.top, item.rank, texts=self._texts)
