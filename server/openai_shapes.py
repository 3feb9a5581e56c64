"""OpenAI's answers: completions and chat completions, whole and in chunks, from jobs.

A chunk is a prebuilt beginning and end around the one choice that changes, so that a token costs one small json.dumps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from ..engine.outputs import CompletionOutput, OutputDelta, TokenLogprobs
from .jobs import Job, usage
from .native_shapes import finite_logprob
from .wire import dumps

TokenText = Callable[[int], str]


@dataclass(frozen=True, kw_only=True)
class Head:
    """What all chunks of one answer share."""

    id: str
    model: str
    created: int

    def fields(self, kind: str) -> dict[str, Any]:
        """The first keys of an answer of this `object` kind."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class Shape:
    """One of the two kinds of answer. `token_text` gives the text of a single token, for logprobs."""

    kind: str
    chunk_kind: str

    def __init__(self, head: Head, token_text: TokenText, *, include_usage: bool = False) -> None:
        self._head = head
        self._token_text = token_text
        self._include_usage = include_usage
        self._prefix = dumps(head.fields(self.chunk_kind))[:-1] + ',"choices":['
        self._suffix = '],"usage":null}' if include_usage else "]}"

    def answer(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """The whole answer, once all jobs have ended. For `dump_pieces`: token texts are found while it is written."""
        n = len(jobs[0].outputs)
        choices = [
            self.choice(number * n + output.index, output) for number, job in enumerate(jobs) for output in job.outputs
        ]
        return {**self._head.fields(self.kind), "choices": choices, "usage": full_usage(jobs)}

    def chunk(self, index: int, delta: OutputDelta, *, text_offset: int) -> str:
        """One event's chunk for choice `index`; `text_offset` characters have gone before."""
        choice = self.chunk_choice(index, delta, text_offset)
        choice["finish_reason"] = None
        if delta.finish_reason is not None:
            choice |= _ending(delta)
        return self._prefix + dumps(choice) + self._suffix

    def usage_chunk(self, jobs: Sequence[Job]) -> str:
        """The last chunk, if usage was asked for."""
        return self._prefix + '],"usage":' + dumps(full_usage(jobs)) + "}"

    def first_chunk(self, index: int) -> str | None:
        """What comes before a choice's first event."""
        return None

    def choice(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        """One choice of the whole answer."""
        raise NotImplementedError

    def chunk_choice(self, index: int, delta: OutputDelta, text_offset: int) -> dict[str, Any]:
        """One choice of a chunk, without finish_reason."""
        raise NotImplementedError


class CompletionShape(Shape):
    """/v1/completions."""

    kind = chunk_kind = "text_completion"

    def choice(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        """Text, with logprobs as parallel lists."""
        return {
            **self._choice(index, output.text, output.logprobs, 0),
            **_ending(output),
        }

    def chunk_choice(self, index: int, delta: OutputDelta, text_offset: int) -> dict[str, Any]:
        """The same, of a piece."""
        return self._choice(index, delta.text, delta.logprobs, text_offset)

    def _choice(
        self, index: int, text: str, logprobs: Sequence[TokenLogprobs] | None, text_offset: int
    ) -> dict[str, Any]:
        shown = None if logprobs is None else self._logprobs(logprobs, text_offset)
        return {"index": index, "text": text, "logprobs": shown}

    def _logprobs(self, items: Sequence[TokenLogprobs], text_offset: int) -> dict[str, Any]:
        offsets = accumulate((len(self._token_text(item.token_id)) for item in items), initial=text_offset)
        return {
            "tokens": (self._token_text(item.token_id) for item in items),
            "token_logprobs": [finite_logprob(item.logprob) for item in items],
            "top_logprobs": map(self._top, items),
            "text_offset": islice(offsets, len(items)),
        }

    def _top(self, item: TokenLogprobs) -> dict[str, float]:
        return {self._token_text(token_id): finite_logprob(logprob) for token_id, logprob in item.top}


class ChatShape(Shape):
    """/v1/chat/completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def first_chunk(self, index: int) -> str | None:
        """The role."""
        choice = _chat_choice(index, {"delta": {"role": "assistant", "content": ""}}, None) | {"finish_reason": None}
        return self._prefix + dumps(choice) + self._suffix

    def choice(self, index: int, output: CompletionOutput) -> dict[str, Any]:
        """A message."""
        message = {"role": "assistant", "content": output.text, "refusal": None}
        return {
            **_chat_choice(index, {"message": message}, self._logprobs(output.logprobs)),
            **_ending(output),
        }

    def chunk_choice(self, index: int, delta: OutputDelta, text_offset: int) -> dict[str, Any]:
        """A piece of the message."""
        content = {"content": delta.text} if delta.text or delta.token_ids else {}
        return _chat_choice(index, {"delta": content}, self._logprobs(delta.logprobs))

    def _logprobs(self, items: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        if items is None:
            return None
        return {"content": map(self._position, items), "refusal": None}

    def _position(self, item: TokenLogprobs) -> dict[str, Any]:
        top = [self._token(token_id, logprob) for token_id, logprob in item.top]
        return {**self._token(item.token_id, item.logprob), "top_logprobs": top}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._token_text(token_id)
        return {"token": text, "logprob": finite_logprob(logprob), "bytes": list(text.encode("utf-8", "replace"))}


def full_usage(jobs: Sequence[Job]) -> dict[str, Any]:
    """Usage with the share of the prompts that came from the prefix cache."""
    return {**usage(*jobs), "prompt_tokens_details": {"cached_tokens": sum(job.num_cached_tokens for job in jobs)}}


def _chat_choice(index: int, content: dict[str, Any], logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": logprobs}


def _ending(output: OutputDelta | CompletionOutput) -> dict[str, Any]:
    """Why it ended, in OpenAI's words, which know no timeout: it ran out of room to go on."""
    if output.finish_reason == "timeout":
        return {"finish_reason": "length", "stop_reason": "timeout"}
    return {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}
