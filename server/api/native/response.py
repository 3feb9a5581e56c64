"""Bodies of the native routes, as described in API.md: the result object, and the event stream.

The stream has `token` events, numbered from 0, then `done` with the result, or `error`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ....engine.core.outputs import OutputDelta, PromptLogprobs, RequestMetrics, TokenLogprobs
from ....engine.serving.request_output import CompletionOutput
from ...http.errors import Problem, describe
from ...http.json_response import dumps, dumps_list, quoted
from ...http.json_writer import JsonWriter, SharedBody
from ...http.sse import frame
from ...jobs.job import Job, usage
from ..streaming import StreamWriter


def result_object(job: Job) -> dict[str, Any]:
    """Build the result object for `json_slices`: a snapshot, partial while the job runs."""
    outputs = [_output(output) | job.report(output.index) for output in job.outputs]
    failure = job.failure() if job.status == "failed" else None
    return {
        "seq_id": job.seq_id,
        "status": job.status,
        "model": job.model,
        "text": outputs[0]["text"],
        "token_ids": iter(list(job.outputs[0].token_ids)),
        **{name: outputs[0][name] for name in ("finish_reason", "stop_reason")},
        "outputs": outputs,
        **({} if job.prompt_logprobs is None else {"prompt_logprobs": prompt_logprobs(job.prompt_logprobs)}),
        **job.additions(),
        **({"prompt_token_ids": iter(job.prompt_token_ids)} if job.prompt_token_ids else {}),
        "usage": usage(job) | {"cached_tokens": job.num_cached_tokens},
        "timings": _timings(job),
        **job.weights,
        "error": describe(failure).error() if failure else None,
        **({"attempt": job.attempt} if job.attempt > 1 else {}),
    }


def listed(job: Job) -> dict[str, Any]:
    """Build the result object without the outputs."""
    left_out = ("text", "token_ids", "outputs", "prompt_logprobs", "prompt_token_ids", "receipt")
    return {name: value for name, value in result_object(job).items() if name not in left_out} | {
        "created_at": job.created_at
    }


async def finished_result(job: Job, json: JsonWriter) -> SharedBody:
    """Serialise the result object of a job that has ended."""
    return await json.write_once(job.seq_id, lambda: json.write(result_object(job)))


def event_json(event: OutputDelta) -> str:
    """Serialise the data of a token event."""
    token_ids = ",".join(map(str, event.token_ids))
    plain = f'{{"index":{event.index},"text":{quoted(event.text)},"token_ids":[{token_ids}]'
    if event.logprobs is None:
        return plain + "}"
    return f'{plain},"logprobs":{dumps_list([_logprobs(item) for item in event.logprobs])}}}'


def prompt_logprobs(scores: PromptLogprobs) -> Iterator[dict[str, Any] | None]:
    """Yield logprobs in vLLM's form: null for the first token, then {"421": {"logprob": -1.5, "rank": 2}, …}."""
    for score in scores:
        yield None if score is None else {str(token_id): _entry(*entry) for token_id, entry in score.items()}


def _entry(logprob: float, rank: int | None) -> dict[str, Any]:
    return {"logprob": finite_logprob(logprob), "rank": rank}


def finite_logprob(value: float) -> float:
    """Replace minus infinity, which JSON lacks: the lowest logprob is -9999, like vLLM's."""
    return max(value, -9999.0)


def _output(output: CompletionOutput) -> dict[str, Any]:
    return {
        "index": output.index,
        "text": output.text,
        "token_ids": iter(list(output.token_ids)),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "logprobs": None if output.logprobs is None else map(_logprobs, list(output.logprobs)),
    }


def _logprobs(item: TokenLogprobs) -> dict[str, Any]:
    top = [{"token_id": token_id, "logprob": finite_logprob(logprob)} for token_id, logprob in item.top]
    return {"token_id": item.token_id, "logprob": finite_logprob(item.logprob), "top": top}


def _timings(job: Job) -> dict[str, float | int]:
    metrics = job.metrics
    arrival = min((m.arrival_time for m in metrics), default=0.0)
    scheduled = min((m.first_scheduled_time for m in metrics if m.first_scheduled_time is not None), default=arrival)
    first = min((m.first_token_time for m in metrics if m.first_token_time is not None), default=None)
    finished = max((m.finished_time for m in metrics if m.finished_time is not None), default=arrival)
    decode_s = finished - first if first is not None else 0.0
    num_decoded = sum(max(0, m.num_output_tokens - 1) for m in metrics)  # without each output's first token
    return {
        "queue_s": scheduled - arrival,
        "ttft_s": first - arrival if first is not None else 0.0,
        "decode_s": decode_s,
        "e2e_s": finished - arrival,
        "tokens_per_s": num_decoded / decode_s if decode_s > 0 else 0.0,
        "num_preemptions": sum(m.num_preemptions for m in metrics),
    } | _drafts(metrics)


def _drafts(metrics: Sequence[RequestMetrics]) -> dict[str, int]:
    """Return the counts of speculation, nothing if there were no drafts."""
    num_drafted = sum(m.num_draft_tokens for m in metrics)
    num_accepted = sum(m.num_accepted_tokens for m in metrics)
    return {"num_draft_tokens": num_drafted, "num_accepted_tokens": num_accepted} if num_drafted else {}


class NativeStreamWriter(StreamWriter):
    """Events of one job. A reader that resumes after the last event gets nothing more."""

    def __init__(self, job: Job, json: JsonWriter, *, first_id: int = 0) -> None:
        self._job = job
        self._json = json
        self._first_id = first_id
        self._result: SharedBody | None = None  # held while it is being sent

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        frames = [frame(event_json(delta), event="token", event_id=event_id + i) for i, delta in enumerate(deltas)]
        return "".join(frames).encode("ascii")

    async def end(self) -> Sequence[bytes]:
        num_events = len(self._job.events)
        if self._first_id > num_events:
            return []
        failure = self._job.failure() if self._job.status == "failed" else None
        if failure is not None:
            error = dumps(describe(failure).envelope())
            return [frame(error, event="error", event_id=num_events).encode("ascii")]
        head, tail = frame("\0", event="done", event_id=num_events).encode("ascii").split(b"\0")
        self._result = await finished_result(self._job, self._json)
        if len(self._result) == 1:
            return [b"".join([head, *self._result, tail])]
        return [head, *self._result, tail]

    def error(self, problem: Problem) -> bytes:
        return frame(dumps(problem.envelope()), event="error").encode("ascii")
