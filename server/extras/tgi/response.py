"""Answers of TGI's routes, whole and token by token, built from jobs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....engine.core.outputs import OutputDelta, TokenLogprobs
from ...api.native.response import finite_logprob
from ...api.streaming import StreamWriter
from ...http.errors import Problem
from ...http.json_response import dumps
from ...http.sse import frame
from ...jobs.job import Job, raise_failure
from .errors import envelope

Token = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Form:
    """Options of an answer. `beginning` precedes the text; `token_text` decodes one token."""

    token_text: Callable[[int], str]
    beginning: str = ""
    seed: int | None = None

    def text(self, job: Job) -> str:
        """Return the text of a job that has ended."""
        return self.beginning + job.outputs[0].text

    def details(self, job: Job) -> dict[str, Any]:
        """Describe the end of the output."""
        output = job.outputs[0]
        is_cut = output.finish_reason in ("length", "timeout")
        stop = "stop_sequence" if isinstance(output.stop_reason, str) else "eos_token"
        return {
            "finish_reason": "length" if is_cut else stop,
            "generated_tokens": len(output.token_ids),
            "seed": self.seed,
        }

    def tokens(self, job: Job) -> list[Token]:
        """Describe all tokens of a job that has ended."""
        output = job.outputs[0]
        values: Sequence[TokenLogprobs | None] = output.logprobs or [None] * len(output.token_ids)
        pairs = zip(output.token_ids, values, strict=True)
        return [token(token_id, self.token_text(token_id), logprobs) for token_id, logprobs in pairs]

    def whole(self, job: Job, *, has_details: bool) -> dict[str, Any]:
        """Build the answer of a job that has ended."""
        details = {"details": self.details(job) | {"prefill": [], "tokens": self.tokens(job)}} if has_details else {}
        return {"generated_text": self.text(job), **details}


class TgiStreamWriter(StreamWriter):
    """Events of one job. Only the last event has the whole text, so the last token waits for the end."""

    def __init__(self, job: Job, form: Form) -> None:
        self._job = job
        self._form = form
        self._num_sent = 0
        self._last: Token = token(0, "", None)

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        tokens = [token for delta in deltas for token in _tokens(delta)]
        if deltas[-1].finish_reason is not None and tokens:
            self._last = tokens.pop()
        return "".join(map(self._event, tokens)).encode("ascii")

    async def end(self) -> Sequence[bytes]:
        raise_failure([self._job])
        details = self._form.details(self._job) | {"input_length": self._job.num_prompt_tokens}
        last = self._event(self._last, generated_text=self._form.text(self._job), details=details)
        return [last.encode("ascii")]

    def error(self, problem: Problem) -> bytes:
        return frame(dumps(envelope(problem))).encode("ascii")

    def _event(self, token: Token, **last: Any) -> str:
        self._num_sent += 1
        return frame(dumps({"index": self._num_sent, "token": token, "generated_text": None, "details": None, **last}))


def token(token_id: int, text: str, logprobs: TokenLogprobs | None) -> Token:
    """Describe one token."""
    logprob = 0.0 if logprobs is None else finite_logprob(logprobs.logprob)
    return {"id": token_id, "text": text, "logprob": logprob, "special": False}


def _tokens(delta: OutputDelta) -> list[Token]:
    """Describe a delta's tokens. Their joined texts are the delta's text, which the last token has."""
    logprobs = delta.logprobs or [None] * len(delta.token_ids)
    tokens = [token(token_id, "", value) for token_id, value in zip(delta.token_ids, logprobs, strict=True)]
    if delta.text and not tokens:
        return [token(0, delta.text, None)]
    if tokens:
        tokens[-1]["text"] = delta.text
    return tokens
