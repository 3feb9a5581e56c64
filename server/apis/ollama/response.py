"""Answers of /api/chat and /api/generate, whole and line by line, built from jobs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ....engine.core.outputs import OutputDelta
from ....engine.language.chat.answer_parts import AnswerPart, joined, read_whole
from ...api.chat.answer_format import AnswerFormat, tool_input
from ...api.streaming import StreamWriter
from ...http.errors import Problem
from ...http.json_response import dumps
from ...http.sse import SPACE, LineStream
from ...jobs.job import Job, raise_failure
from .errors import envelope

Content = Callable[[Iterable[AnswerPart]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Form:
    """Format to split an answer by, and the function that builds its keys."""

    answer: AnswerFormat
    content: Content

    def whole(self, job: Job) -> dict[str, Any]:
        """Build the answer of a job that has ended."""
        parts = read_whole(self.answer.reader(), job.outputs[0].text)
        return head(job.model, job.created) | self.content(parts) | ending(job)


class OllamaStreamWriter(StreamWriter):
    """Lines of one job. A call is sent whole, with its arguments."""

    response = LineStream
    ping = SPACE

    def __init__(self, job: Job, form: Form) -> None:
        self._job = job
        self._form = form
        self._reader = form.answer.reader()
        self._head = head(job.model, job.created)
        self._call: list[AnswerPart] = []  # last call, which may still grow

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        parts = self._ready(self._reader.push("".join(delta.text for delta in deltas)))
        return _line(self._head | self._form.content(parts) | {"done": False}) if parts else b""

    async def end(self) -> Sequence[bytes]:
        raise_failure([self._job])
        parts = [*self._ready(self._reader.finish()), *self._call]
        return [_line(self._head | self._form.content(parts) | ending(self._job))]

    def error(self, problem: Problem) -> bytes:
        return _line(envelope(problem))

    def _ready(self, parts: Iterable[AnswerPart]) -> list[AnswerPart]:
        """Return the parts before a call that may still grow."""
        ready: list[AnswerPart] = []
        for part in parts:
            if part.kind == "arguments":
                self._call.append(part)
                continue
            ready += self._call
            self._call = [part] if part.kind == "call" else []
            ready += [] if part.kind == "call" else [part]
        return ready


def head(model: str, created: float) -> dict[str, Any]:
    """Build the first keys of every line. `created`: seconds since 1970."""
    return {"model": model, "created_at": timestamp(created)}


def timestamp(seconds: float) -> str:
    """Format a time in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def chat_content(parts: Iterable[AnswerPart]) -> dict[str, Any]:
    """Build the content of an answer of /api/chat."""
    texts, calls = _texts_and_calls(parts)
    message = {"role": "assistant", "content": texts.pop("content", ""), **texts}
    return {"message": message | ({"tool_calls": calls} if calls else {})}


def generate_content(parts: Iterable[AnswerPart]) -> dict[str, Any]:
    """Build the content of an answer of /api/generate, which has no tools."""
    texts, _ = _texts_and_calls(parts)
    return {"response": texts.pop("content", ""), **texts}


def ending(job: Job) -> dict[str, Any]:
    """Build the last keys: the reason for the end, and durations in nanoseconds."""
    output, metrics = job.outputs[0], job.metrics[0]
    end = metrics.finished_time or metrics.arrival_time
    first = metrics.first_token_time or end
    begin = metrics.first_scheduled_time or first
    return {
        "done": True,
        "done_reason": "length" if output.finish_reason in ("length", "timeout") else "stop",
        "total_duration": _nanoseconds(end - metrics.arrival_time),
        "load_duration": 0,
        "prompt_eval_count": job.num_prompt_tokens,
        "prompt_eval_duration": _nanoseconds(first - begin),
        "eval_count": job.num_completion_tokens,
        "eval_duration": _nanoseconds(end - first),
    }


def _texts_and_calls(parts: Iterable[AnswerPart]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    texts: dict[str, str] = {}
    calls: list[dict[str, Any]] = []
    for part in joined(parts):
        if part.kind == "call":
            calls.append({"function": {"name": part.text, "arguments": {}}})
        elif part.kind == "arguments":
            calls[-1]["function"]["arguments"] = tool_input(part.text)
        else:
            name = "content" if part.kind == "content" else "thinking"
            texts[name] = texts.get(name, "") + part.text
    return texts, calls


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _line(value: dict[str, Any]) -> bytes:
    return (dumps(value) + "\n").encode("ascii")
