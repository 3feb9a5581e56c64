"""The answers of /v1/chat/completions."""

from collections.abc import Sequence
from typing import Any

from ..engine.outputs import CompletionOutput, OutputDelta, TokenLogprobs
from .jobs import Job
from .native_shapes import finite_logprob, prompt_logprobs
from .openai_shapes import Shape, ending
from .wire import dumps


class ChatShape(Shape):
    """/v1/chat/completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def answer(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """The whole answer."""
        scores = jobs[0].prompt_logprobs
        more = {} if scores is None else {"prompt_logprobs": prompt_logprobs(scores)}
        return super().answer(jobs) | more

    def first_chunk(self, index: int, job: Job) -> str | None:
        """The role."""
        choice = _chat_choice(index, {"delta": {"role": "assistant", "content": ""}}, None) | {"finish_reason": None}
        return self._prefix + dumps(choice) + self._suffix

    def choice(self, index: int, output: CompletionOutput, job: Job) -> dict[str, Any]:
        """A message."""
        message = {"role": "assistant", "content": output.text, "refusal": None}
        return {
            **_chat_choice(index, {"message": message}, self._logprobs(output.logprobs)),
            **ending(output),
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


def _chat_choice(index: int, content: dict[str, Any], logprobs: dict[str, Any] | None) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": logprobs}
