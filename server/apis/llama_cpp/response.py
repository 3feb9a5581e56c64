"""Answers of /completion, whole and in events, built from a job."""

from collections.abc import Sequence
from typing import Any

from ....engine.core.outputs import OutputDelta
from ...api.streaming import StreamWriter
from ...http.errors import Problem
from ...http.json_response import dumps
from ...http.sse import frame
from ...jobs.job import Job, raise_failure


def whole(job: Job, *, has_tokens: bool) -> dict[str, Any]:
    """Build the answer of a job that has ended."""
    output = job.outputs[0]
    return {"content": output.text, "tokens": list(output.token_ids) if has_tokens else []} | ending(job)


def ending(job: Job) -> dict[str, Any]:
    """Describe the end of a job: its reason, tokens and times."""
    output = job.outputs[0]
    is_cut = output.finish_reason in ("length", "timeout")
    word = output.stop_reason if isinstance(output.stop_reason, str) else ""
    return {
        "index": 0,
        "id_slot": 0,
        "stop": True,
        "model": job.model,
        "tokens_predicted": len(output.token_ids),
        "tokens_evaluated": job.num_prompt_tokens,
        "tokens_cached": job.num_cached_tokens,
        "truncated": False,
        "has_new_line": "\n" in output.text,
        "stop_type": "limit" if is_cut else "word" if word else "eos",
        "stopping_word": word,
        "timings": _timings(job),
    }


class CompletionStreamWriter(StreamWriter):
    """Events of one job; the last one has no text."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        text = "".join(delta.text for delta in deltas)
        token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        return _frame({"index": 0, "content": text, "tokens": token_ids, "stop": False})

    async def end(self) -> Sequence[bytes]:
        raise_failure([self._job])
        return [_frame({"content": "", "tokens": []} | ending(self._job))]

    def error(self, problem: Problem) -> bytes:
        return frame(dumps(problem.envelope())).encode("ascii")


def _timings(job: Job) -> dict[str, Any]:
    metrics, num_tokens = job.metrics[0], job.num_completion_tokens
    end = metrics.finished_time or metrics.arrival_time
    first = metrics.first_token_time or end
    begin = metrics.first_scheduled_time or first
    prompt_s, predicted_s = first - begin, end - first
    return {
        "prompt_n": job.num_prompt_tokens - job.num_cached_tokens,
        "prompt_ms": 1000 * prompt_s,
        "predicted_n": num_tokens,
        "predicted_ms": 1000 * predicted_s,
        "predicted_per_second": num_tokens / predicted_s if predicted_s > 0 else 0.0,
    }


def _frame(value: dict[str, Any]) -> bytes:
    return frame(dumps(value)).encode("ascii")
