"""Answers of /v1/completions. With `echo` the prompt precedes the answer, in the text and in the logprobs."""

from codecs import IncrementalDecoder, getincrementaldecoder
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ....engine.core.outputs import OutputDelta, TokenLogprobs
from ....engine.serving.request_output import CompletionOutput
from ...api.chat.model_text import TokenText
from ...api.native.response import finite_logprob, prompt_logprobs
from ...http.json_response import dumps, quoted
from ...jobs.job import Job
from .request import Echo, Shown
from .response import Head, ResponseBuilder, ending, full_usage

# A token and its logprobs, which the first token of a prompt lacks.
_Scored = tuple[int, TokenLogprobs | None]
_utf8 = getincrementaldecoder("utf-8")


class CompletionResponseBuilder(ResponseBuilder):
    """Builder of text answers, with logprobs as parallel lists. `prompt_text` returns the text of a job's prompt."""

    kind = chunk_kind = "text_completion"

    def __init__(
        self, head: Head, token_text: TokenText, *, shown: Shown, echo: Echo, prompt_text: Callable[[Job], str]
    ) -> None:
        super().__init__(head, token_text, shown=shown)
        self._echo = echo
        self._prompt_text = prompt_text
        self._num_echoed: dict[int, int] = {}  # length of the echoed prompt, per streamed choice
        # Bytes of a character that is not complete yet, per streamed choice.
        self._decoders: defaultdict[int, IncrementalDecoder] = defaultdict(lambda: _utf8("replace"))

    def choice(self, index: int, output: CompletionOutput, job: Job) -> dict[str, Any]:
        """Build one choice of the whole answer."""
        echoed = self._echoed(job)
        text, logprobs = self._after_prompt(output)
        scores = None if logprobs is None else [*self._scores(job), *_with_ids(logprobs)]
        more: dict[str, Any] = {}
        if job.prompt_logprobs is not None and not self._echo.is_wanted:
            more["prompt_logprobs"] = prompt_logprobs(job.prompt_logprobs)
        if self._shown.token_ids:
            more["prompt_token_ids"] = iter(job.prompt_token_ids)
        return {**self._choice(index, echoed + text, scores, 0, _utf8("replace")), **more, **ending(output)}

    def usage(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Count the answer's tokens, without a token that was sampled only to be left out."""
        usage = full_usage(jobs)
        return usage | {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]} if self._echo.is_all else usage

    def show_usage(self, jobs: Sequence[Job], num_tokens: int) -> None:
        """Like ResponseBuilder.show_usage, but without a token that was sampled only to be left out."""
        super().show_usage(jobs, 0 if self._echo.is_all else num_tokens)

    def first_chunk(self, index: int, job: Job) -> str | None:
        """Return a chunk with the prompt, if its text is echoed or its ids are shown."""
        if not self._echo.is_wanted and not self._shown.token_ids:
            return None
        echoed = self._echoed(job)
        self._num_echoed[index] = len(echoed)
        scores = None if job.prompt_logprobs is None or not self._echo.is_wanted else self._scores(job)
        choice = self._choice(index, echoed, scores, 0, self._decoders[index]) | {"finish_reason": None}
        if self._shown.token_ids:
            choice |= {"prompt_token_ids": job.prompt_token_ids, "token_ids": []}
        return self._prefix + dumps(choice) + self._suffix

    def chunk_choice(self, index: int, delta: OutputDelta, text_offset: int) -> dict[str, Any]:
        """Build one choice of a chunk."""
        text, logprobs = self._after_prompt(delta)
        scores = None if logprobs is None else list(_with_ids(logprobs))
        return self._choice(index, text, scores, self._num_echoed.get(index, 0) + text_offset, self._decoders[index])

    def plain_choice(self, index: int, text: str) -> str:
        """Return the JSON of a chunk's choice with text alone."""
        visible_text = "" if self._echo.is_all else text
        return f'{{"index":{index},"text":{quoted(visible_text)},"logprobs":null,"finish_reason":null}}'

    def _after_prompt(self, output: CompletionOutput | OutputDelta) -> tuple[str, Sequence[TokenLogprobs] | None]:
        """Return the text and logprobs after the prompt, nothing if only the prompt was wanted."""
        if not self._echo.is_all:
            return output.text, output.logprobs
        return "", None if output.logprobs is None else ()

    def _echoed(self, job: Job) -> str:
        return self._prompt_text(job) if self._echo.is_wanted else ""

    def _scores(self, job: Job) -> list[_Scored]:
        if not self._echo.is_wanted or job.prompt_logprobs is None:
            return []
        return list(zip(job.prompt_token_ids, job.prompt_logprobs, strict=True))

    def _choice(
        self, index: int, text: str, scores: Sequence[_Scored] | None, text_offset: int, decoder: IncrementalDecoder
    ) -> dict[str, Any]:
        logprobs = None if scores is None else self._logprobs(scores, text_offset, decoder)
        return {"index": index, "text": text, "logprobs": logprobs}

    def _logprobs(self, scores: Sequence[_Scored], text_offset: int, decoder: IncrementalDecoder) -> dict[str, Any]:
        return {
            "tokens": (self._token_text(token_id).text for token_id, _ in scores),
            "token_logprobs": (None if item is None else finite_logprob(item.logprob) for _, item in scores),
            "top_logprobs": (None if item is None else self._top(item) for _, item in scores),
            "text_offset": self._offsets(scores, text_offset, decoder),
        }

    def _offsets(self, scores: Sequence[_Scored], offset: int, decoder: IncrementalDecoder) -> Iterator[int]:
        """Yield the number of characters that are complete before each token: it may be half a character."""
        for token_id, _ in scores:
            yield offset
            offset += len(decoder.decode(self._token_text(token_id).raw))

    def _top(self, item: TokenLogprobs) -> dict[str, float]:
        """Return the likeliest tokens, and the token itself."""
        top = {self._token_text(token_id).text: finite_logprob(logprob) for token_id, logprob in item.top}
        top.setdefault(self._token_text(item.token_id).text, finite_logprob(item.logprob))
        return top


def _with_ids(logprobs: Iterable[TokenLogprobs]) -> Iterable[_Scored]:
    return ((item.token_id, item) for item in logprobs)
