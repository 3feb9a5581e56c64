"""Answers of /v1/responses: the response object, and the events of its life, which are the same on every replay."""

import asyncio
from collections.abc import Sequence
from typing import Any

from ....engine.core.outputs import OutputDelta
from ....engine.errors import InvalidRequestError, SplitfuseError
from ....engine.language.chat.messages import Message, read_items
from ...api.chat.model_text import TokenText, num_reasoning_tokens
from ...api.streaming import MAX_BATCH, StreamWriter
from ...http.errors import Problem, describe
from ...http.json_response import dumps
from ...http.sse import frame
from ...jobs.job import Job, usage
from ...jobs.result_store import ID_PREFIX
from ..openai.response import scored_token
from .output_items import Event, OutputItems
from .request import StoredRequest, stored_request

_NATIVE = StoredRequest(repeated={"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}})
# Open Responses requires these keys of every response, also of one that an earlier version has kept.
_REQUIRED = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), 0.0),
    **dict.fromkeys(("max_tool_calls", "service_tier", "safety_identifier", "prompt_cache_key")),
    "top_logprobs": 0,
}
_FINAL_EVENTS = {"completed": "completed", "failed": "failed"}  # all other ends are incomplete


async def response_object(job: Job, token_text: TokenText) -> dict[str, Any]:
    """Build the response as it is now, partial while the job runs."""
    life = ResponseLife(job, token_text)
    for number, event in enumerate(job.events):
        life.push(event)
        if number % MAX_BATCH == MAX_BATCH - 1:
            await asyncio.sleep(0)  # let other tasks run
    if job.finished:
        life.end()
    return life.response()


class ResponseLife:
    """Follower of one job. The same deltas give the same events with the same sequence numbers."""

    def __init__(self, job: Job, token_text: TokenText) -> None:
        self._job = job
        self._request = stored_request(job) or _NATIVE
        self._token_text = token_text
        self._reader = self._request.answer.reader()
        answer = self._request.answer
        self._output = OutputItems(job.seq_id, customs=answer.customs, namespaces=answer.namespaces)
        self._held: list[dict[str, Any]] = []  # logprobs of text that is held back
        self._num_events = 0

    def begin(self) -> list[Event]:
        """Return the events before any output."""
        waiting = self.response(status="queued" if self._request.is_background else "in_progress")
        kinds = ["created", "queued"] if self._request.is_background else ["created"]
        events: list[Event] = [{"type": f"response.{kind}", "response": waiting} for kind in kinds]
        events.append({"type": "response.in_progress", "response": self.response(status="in_progress")})
        return self._numbered(events)

    def push(self, delta: OutputDelta) -> list[Event]:
        """Return the events for one delta of the job."""
        if delta.index:  # a job of another API may have several outputs
            return []
        parts = self._reader.push(delta.text)
        if self._request.has_logprobs:
            self._held += [scored_token(item, self._token_text) for item in delta.logprobs or ()]
        logprobs, self._held = (self._held, []) if parts else ((), self._held)
        return self._numbered(self._output.push(parts, logprobs=logprobs))

    def end(self) -> list[Event]:
        """Return the events that end the output and the response."""
        status = self._status()
        events = self._output.push(self._reader.finish(), logprobs=self._held)
        events += self._output.finish(status="completed" if status == "completed" else "incomplete")
        kind = _FINAL_EVENTS.get(status, "incomplete")
        return self._numbered([*events, {"type": f"response.{kind}", "response": self.response()}])

    def response(self, *, status: str | None = None) -> dict[str, Any]:
        """Build the response object. `status` builds it as it was before any output."""
        is_over = status is None and self._job.finished
        current = status or self._status()
        failure = self._job.failure() if current == "failed" else None
        return {
            "id": ID_PREFIX + self._job.seq_id,
            "object": "response",
            "created_at": self._job.created_at,
            "completed_at": self._completed_at() if current == "completed" else None,
            "status": current,
            "model": self._job.model,
            "error": _error(failure) if failure else None,
            "incomplete_details": {"reason": "max_output_tokens"} if current == "incomplete" else None,
            "output": [] if status else self._output.items,
            "usage": self._usage() if is_over else None,
            **_REQUIRED,
            **self._request.repeated,
            **(self._job.report(0) | self._job.weights | self._job.additions() if is_over else {}),
        }

    def _status(self) -> str:
        status = self._job.status
        if status == "completed" and self._job.outputs[0].finish_reason in ("length", "timeout"):
            return "incomplete"
        return "in_progress" if status == "running" else status

    def _completed_at(self) -> int | None:
        """Return the time of the end, in seconds since 1970, None if it is not kept."""
        metrics = next(iter(self._job.metrics), None)
        if metrics is None or metrics.finished_time is None:
            return None
        return int(self._job.created + metrics.finished_time - metrics.arrival_time)

    def _usage(self) -> dict[str, Any]:
        counts = usage(self._job)
        num_reasoning = num_reasoning_tokens(self._job, self._request.answer, self._token_text)
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": self._job.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": num_reasoning},
            "total_tokens": counts["total_tokens"],
        }

    def _numbered(self, events: Sequence[Event]) -> list[Event]:
        first = self._num_events
        self._num_events += len(events)
        return [event | {"sequence_number": first + number} for number, event in enumerate(events)]


def _error(failure: SplitfuseError) -> dict[str, str]:
    """Describe a failure with one of OpenAI's codes for responses."""
    problem = describe(failure)
    return {"code": "invalid_prompt" if problem.status == 400 else "server_error", "message": problem.message}


async def conversation_of(job: Job, token_text: TokenText) -> list[Message]:
    """Return the conversation up to the end of this response, to continue from there. Raises InvalidRequestError."""
    request = stored_request(job)
    if request is None or not job.finished:
        reason = "that response is not finished yet" if request is not None else "that was not made by /v1/responses"
        raise InvalidRequestError(f"previous_response_id: {reason}", param="previous_response_id")
    output = (await response_object(job, token_text))["output"]
    try:
        return [*request.messages, *read_items(output)]
    except InvalidRequestError as exc:
        raise InvalidRequestError(
            "previous_response_id: that response ends within a call; it cannot be continued",
            param="previous_response_id",
        ) from exc


class ResponsesStreamWriter(StreamWriter):
    """Events after number `after`; earlier events are replayed without being written."""

    def __init__(self, life: ResponseLife, *, after: int) -> None:
        self._life = life
        self._after = after

    def begin(self) -> bytes:
        return self._frames(self._life.begin())

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        return self._frames([event for delta in deltas for event in self._life.push(delta)])

    async def end(self) -> Sequence[bytes]:
        return [self._frames(self._life.end())]

    def error(self, problem: Problem) -> bytes:
        return _frame({**problem.error(), "type": "error", "sequence_number": -1}).encode("ascii")

    def _frames(self, events: Sequence[Event]) -> bytes:
        return "".join(_frame(event) for event in events if event["sequence_number"] > self._after).encode("ascii")


def _frame(event: Event) -> str:
    return frame(dumps(event), event=event["type"])
