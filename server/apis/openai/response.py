"""Common parts of OpenAI's answers, whole and in chunks, built from jobs; completions and chats each add theirs.

A chunk is a prebuilt beginning and end around the one choice that changes. Nearly all tokens are text alone, and cost
no more JSON than that text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....engine.core.outputs import OutputDelta, TokenLogprobs
from ....engine.serving.request_output import CompletionOutput
from ...api.chat.model_text import TokenText
from ...api.native.response import finite_logprob
from ...http.json_response import dumps
from ...jobs.job import Job, additions, usage
from .request import Shown


@dataclass(frozen=True, kw_only=True)
class Head:
    """Values that all chunks of one answer share."""

    id: str
    model: str
    created: int
    fingerprint: str  # server's and model's

    def fields(self, kind: str) -> dict[str, Any]:
        """Return the first keys of an answer of this `object` kind."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model} | {
            "system_fingerprint": self.fingerprint
        }


class ResponseBuilder:
    """Builder of one of the two kinds of answer. `token_text` returns a single token, for logprobs."""

    kind: str
    chunk_kind: str

    def __init__(self, head: Head, token_text: TokenText, *, shown: Shown) -> None:
        self._head = head
        self._token_text = token_text
        self._shown = shown
        self._prefix = dumps(head.fields(self.chunk_kind))[:-1] + ',"choices":['
        self._usage = ',"usage":null' if shown.usage else ""
        self._weights = ""
        self._suffix = f"]{self._usage}}}"

    def answer(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Build the whole answer once all jobs have ended, for `json_slices`, which looks up token texts lazily."""
        n = len(jobs[0].outputs)
        choices = [
            {
                **self.choice(number * n + output.index, output, job),
                **{name: iter(ids) for name, ids in self.ids(output).items()},
                **job.report(output.index),
            }
            for number, job in enumerate(jobs)
            for output in job.outputs
        ]
        return {
            **self._head.fields(self.kind),
            "choices": choices,
            "usage": self.usage(jobs),
            **weights_of(jobs),
            **additions(*jobs),
        }

    def chunk(self, index: int, delta: OutputDelta, *, text_offset: int, report: Mapping[str, Any]) -> str | None:
        """Build one event's chunk for choice `index`, after `text_offset` characters.

        `report`: fields for the choice's last chunk, beside its end.
        """
        if delta.logprobs is None and delta.finish_reason is None and not self._shown.token_ids:
            return self._prefix + self.plain_choice(index, delta.text) + self._suffix
        choice = self.chunk_choice(index, delta, text_offset) | self.ids(delta)
        choice["finish_reason"] = None
        if delta.finish_reason is not None:
            choice |= {**ending(delta), **report}
        return self._prefix + dumps(choice) + self._suffix

    def ids(self, output: OutputDelta | CompletionOutput) -> dict[str, Any]:
        """Return the token ids of an output, if they are shown."""
        return {"token_ids": list(output.token_ids)} if self._shown.token_ids else {}

    def show_usage(self, jobs: Sequence[Job], num_tokens: int) -> None:
        """Put the usage after `num_tokens` output tokens into all following chunks."""
        num_prompt = sum(job.num_prompt_tokens for job in jobs)
        counts = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens, "total_tokens": num_prompt + num_tokens}
        self._usage = ',"usage":' + dumps(counts)
        self._suffix = f"]{self._usage}{self._weights}}}"

    def show_weights(self, job: Job) -> None:
        """Put the versions of the weights behind a job's tokens into all following chunks."""
        self._weights = "".join(f',"{name}":{version}' for name, version in job.weights.items())
        self._suffix = f"]{self._usage}{self._weights}}}"

    def last_chunk(self, jobs: Sequence[Job]) -> str | None:
        """Build the chunk with the usage, if it was requested, and with additions; None if there is neither."""
        fields = ({"usage": self.usage(jobs)} if self._shown.usage else {}) | additions(*jobs)
        return f"{self._prefix}],{dumps(fields)[1:-1]}{self._weights}}}" if fields else None

    def usage(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Count the answer's tokens."""
        return full_usage(jobs)

    def first_chunk(self, index: int, job: Job) -> str | None:
        """Build the chunk before a choice's first event, if there is one."""
        return None

    def choice(self, index: int, output: CompletionOutput, job: Job) -> dict[str, Any]:
        """Build one choice of the whole answer."""
        raise NotImplementedError

    def chunk_choice(self, index: int, delta: OutputDelta, text_offset: int) -> dict[str, Any]:
        """Build one choice of a chunk, without finish_reason."""
        raise NotImplementedError

    def plain_choice(self, index: int, text: str) -> str:
        """Return the JSON of a chunk's choice with text alone; nearly all chunks are such."""
        raise NotImplementedError


def full_usage(jobs: Sequence[Job]) -> dict[str, Any]:
    """Count tokens, and how many prompt tokens came from the prefix cache."""
    return {**usage(*jobs), "prompt_tokens_details": {"cached_tokens": sum(job.num_cached_tokens for job in jobs)}}


def weights_of(jobs: Sequence[Job]) -> dict[str, int]:
    """Return the versions of the weights behind these jobs, the highest last and the lowest first."""
    versions = [version for job in jobs for version in job.weights.values()]
    last = {"weights_version": max(versions)} if versions else {}
    return last | ({"first_weights_version": min(versions)} if len(set(versions)) > 1 else {})


def ending(output: OutputDelta | CompletionOutput) -> dict[str, Any]:
    """Return why the output ended. OpenAI has no timeout, so it is reported as a length limit."""
    if output.finish_reason == "timeout":
        return {"finish_reason": "length", "stop_reason": "timeout"}
    return {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}


def scored_token(item: TokenLogprobs, token_text: TokenText) -> dict[str, Any]:
    """Describe a token with its logprob and the likeliest tokens, in the form of chats and responses."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text, raw = token_text(token_id)
        return {"token": text, "logprob": finite_logprob(logprob), "bytes": list(raw)}

    return {**entry(item.token_id, item.logprob), "top_logprobs": [entry(*candidate) for candidate in item.top]}
