"""OpenAI's event stream: chunks of choices, perhaps one with the usage, then [DONE]."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ....engine.core.outputs import OutputDelta
from ...api.streaming import StreamWriter
from ...http.errors import Problem
from ...http.json_response import dumps
from ...http.sse import frame
from ...jobs.job import Job, raise_failure
from .request import Shown
from .response import ResponseBuilder

_NO_REPORT: Mapping[str, Any] = MappingProxyType({})


class OpenAIStreamWriter(StreamWriter):
    """Chunks of jobs that make up one answer; each output of a job is a choice."""

    def __init__(self, builder: ResponseBuilder, jobs: Sequence[Job], *, shown: Shown) -> None:
        self._builder = builder
        self._jobs = jobs
        self._shown = shown
        self._num_tokens = 0  # counted only if every chunk shows usage
        self._num_chars: dict[int, int] = {}  # characters sent, per choice that has begun
        self._closed: set[int] = set()  # choices that have ended

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        return _frames([chunk for delta in deltas for chunk in self._chunks(job_index, delta)])

    async def end(self) -> Sequence[bytes]:
        raise_failure(self._jobs)
        chunks: list[str] = []
        for job_index, job in enumerate(self._jobs):
            for output in job.outputs:
                if job_index * len(job.outputs) + output.index not in self._closed:
                    reason, stop_reason = output.finish_reason, output.stop_reason
                    delta = OutputDelta(job.seq_id, output.index, "", (), None, reason, stop_reason)
                    chunks += self._chunks(job_index, delta)
        if (last := self._builder.last_chunk(self._jobs)) is not None:
            chunks.append(last)
        return [_frames([*chunks, "[DONE]"])]

    def error(self, problem: Problem) -> bytes:
        return _frames([dumps(problem.envelope())])

    def _chunks(self, job_index: int, delta: OutputDelta) -> list[str]:
        job = self._jobs[job_index]
        index = job_index * len(job.outputs) + delta.index
        if self._shown.running_usage:
            self._num_tokens += len(delta.token_ids)
            self._builder.show_usage(self._jobs, self._num_tokens)
        first = self._builder.first_chunk(index, job) if index not in self._num_chars else None
        text_offset = self._num_chars.get(index, 0)
        self._num_chars[index] = text_offset + len(delta.text)
        report: Mapping[str, Any] = _NO_REPORT
        if delta.finish_reason is not None:
            self._closed.add(index)
            self._builder.show_weights(job)
            report = job.report(delta.index)
        chunk = self._builder.chunk(index, delta, text_offset=text_offset, report=report)
        return [text for text in (first, chunk) if text is not None]


def _frames(chunks: Sequence[str]) -> bytes:
    return "".join(map(frame, chunks)).encode("ascii")
