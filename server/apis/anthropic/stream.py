"""Anthropic's event stream: a message begins, its blocks follow one after the other in deltas, the message ends."""

from collections.abc import Iterable, Sequence
from typing import Any

from ....engine.core.outputs import OutputDelta
from ....engine.language.chat.answer_parts import AnswerPart
from ...api.chat.answer_format import AnswerFormat
from ...api.streaming import StreamWriter
from ...http.errors import Problem
from ...http.json_response import dumps, quoted
from ...http.sse import frame
from ...jobs.job import Job, raise_failure
from .errors import envelope
from .message import ending, head, opening, usage

# Type of a delta and the key of its text, by the kind of a part.
_DELTAS = {
    "content": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "arguments": ("input_json_delta", "partial_json"),
}


class MessagesStreamWriter(StreamWriter):
    """Events of one job. `max_tokens` is the request's limit; `request_id` appears in errors."""

    ping = frame('{"type": "ping"}', event="ping").encode("ascii")

    def __init__(self, job: Job, answer: AnswerFormat, *, max_tokens: int, request_id: str) -> None:
        self._job = job
        self._reader = None if answer.is_plain else answer.reader()
        self._blocks = _Blocks()
        self._max_tokens = max_tokens
        self._request_id = request_id

    def begin(self) -> bytes:
        return _event("message_start", message=head(self._job)).encode("ascii")

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        text = "".join(delta.text for delta in deltas)
        return self._blocks.push(self._parts(text)).encode("ascii")

    async def end(self) -> Sequence[bytes]:
        raise_failure([self._job])
        rest = self._blocks.push(self._reader.finish()) if self._reader is not None else ""
        rest += self._blocks.close()
        delta = ending(self._job, has_called=self._blocks.has_called, max_tokens=self._max_tokens)
        rest += _event(
            "message_delta", delta=delta, usage=usage(self._job), **self._job.weights, **self._job.additions()
        )
        rest += _event("message_stop")
        return [rest.encode("ascii")]

    def error(self, problem: Problem) -> bytes:
        return frame(dumps(envelope(problem, self._request_id)), event="error").encode("ascii")

    def _parts(self, text: str) -> Iterable[AnswerPart]:
        if self._reader is not None:
            return self._reader.push(text)
        return [AnswerPart("content", text)] if text else []


class _Blocks:
    """Blocks of a message as events. Only the last block can be open."""

    def __init__(self) -> None:
        self.has_called = False
        self._index = -1
        self._kind: str | None = None  # kind of the open block's text

    def push(self, parts: Iterable[AnswerPart]) -> str:
        """Return the events for these parts."""
        return "".join(map(self._part_events, parts))

    def close(self) -> str:
        """Return the events that end the open block, if there is one."""
        kind, self._kind = self._kind, None
        if kind is None:
            return ""
        proof = {"type": "signature_delta", "signature": ""}  # clients wait for a signature
        signed = _event("content_block_delta", index=self._index, delta=proof) if kind == "reasoning" else ""
        return signed + _event("content_block_stop", index=self._index)

    def _part_events(self, part: AnswerPart) -> str:
        kind = "arguments" if part.kind == "call" else part.kind
        opening_events = ""
        if kind != self._kind or part.kind == "call":
            opening_events = self.close() + self._begin(part)
            self._kind = kind
        return opening_events if part.kind == "call" else opening_events + self._delta(part)

    def _begin(self, part: AnswerPart) -> str:
        self._index += 1
        self.has_called = self.has_called or part.kind == "call"
        return _event("content_block_start", index=self._index, content_block=opening(part))

    def _delta(self, part: AnswerPart) -> str:
        kind, key = _DELTAS[part.kind]
        delta = f'{{"type":"{kind}","{key}":{quoted(part.text)}}}'
        data = f'{{"type":"content_block_delta","index":{self._index},"delta":{delta}}}'
        return frame(data, event="content_block_delta")


def _event(kind: str, **fields: Any) -> str:
    return frame(dumps({"type": kind, **fields}), event=kind)
