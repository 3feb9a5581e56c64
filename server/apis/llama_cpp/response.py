"""Answers of /completion, whole and in events, built from a job."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ....engine.core.outputs import OutputDelta, TokenLogprobs
from ....engine.core.sampling_params import SamplingParams
from ...api.chat.model_text import ShownToken
from ...api.native.response import finite_logprob
from ...api.streaming import StreamWriter
from ...http.errors import Problem
from ...http.json_response import JsonResponse, dumps
from ...http.sse import frame
from ...jobs.job import Job, raise_failure

Shown = Callable[[int], ShownToken]


def settings(params: SamplingParams, *, is_stream: bool) -> dict[str, Any]:
    """Return a request's parameters as llama.cpp's `generation_settings`: -1 as many tokens as fit."""
    names = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos")
    num_tokens = -1 if (limit := params.max_tokens or params.default_max_tokens) is None else limit
    return {name: getattr(params, name) for name in names} | {
        "seed": 2**32 - 1 if params.seed is None else params.seed,
        "top_k": max(0, params.top_k),
        "repeat_penalty": params.repetition_penalty,
        "n_predict": num_tokens,
        "max_tokens": num_tokens,
        "n_probs": params.logprobs or 0,
        "stop": list(params.stop),
        "logit_bias": [{"token": token, "bias": bias} for token, bias in (params.logit_bias or {}).items()],
        "stream": is_stream,
    }


def whole(job: Job, shown: Shown, *, has_tokens: bool) -> dict[str, Any]:
    """Build the answer of a job that has ended."""
    output = job.outputs[0]
    probabilities = {"completion_probabilities": _scored(output.logprobs, shown)} if output.logprobs else {}
    tokens = list(output.token_ids) if has_tokens else []
    return {"content": output.text, "tokens": tokens} | probabilities | ending(job)


def _scored(items: Iterable[TokenLogprobs], shown: Shown) -> Iterator[dict[str, Any]]:
    """Yield each token with its logprob and the likeliest tokens."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text, raw = shown(token_id)
        return {"id": token_id, "token": text, "bytes": list(raw), "logprob": finite_logprob(logprob)}

    for item in items:
        yield {**entry(item.token_id, item.logprob), "top_logprobs": [entry(*candidate) for candidate in item.top]}


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

    def __init__(self, job: Job, shown: Shown, more: dict[str, Any]) -> None:
        """`more`: what the last event says of the request."""
        self._job, self._more = job, more
        self._shown = shown

    def write(self, job_index: int, event_id: int, deltas: Sequence[OutputDelta]) -> bytes:
        text = "".join(delta.text for delta in deltas)
        token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        scored = list(_scored((item for delta in deltas for item in delta.logprobs or ()), self._shown))
        more = {"completion_probabilities": scored} if scored else {}
        return _frame({"index": 0, "content": text, "tokens": token_ids, "stop": False} | more)

    async def end(self) -> Sequence[bytes]:
        raise_failure([self._job])
        return [_frame({"content": "", "tokens": []} | ending(self._job) | self._more)]

    def error(self, problem: Problem) -> bytes:
        return _frame(_envelope(problem))


def error_answer(problem: Problem, request_id: str) -> JsonResponse:
    """Build the error answer."""
    return JsonResponse(_envelope(problem), status_code=problem.status, headers=dict(problem.headers))


def _envelope(problem: Problem) -> dict[str, Any]:
    envelope = problem.envelope()
    if problem.code == "context_length_exceeded":  # llama.cpp's type, by which clients shorten a prompt
        envelope["error"]["type"] = "exceed_context_size_error"
    return envelope


def _timings(job: Job) -> dict[str, Any]:
    metrics, num_tokens = job.metrics[0], job.num_completion_tokens
    end = metrics.finished_time or metrics.arrival_time
    first = metrics.first_token_time or end
    begin = metrics.first_scheduled_time or first
    prompt_s, predicted_s = first - begin, end - first
    return {
        "cache_n": job.num_cached_tokens,
        "prompt_n": job.num_prompt_tokens - job.num_cached_tokens,
        "prompt_ms": 1000 * prompt_s,
        "predicted_n": num_tokens,
        "predicted_ms": 1000 * predicted_s,
        "predicted_per_second": num_tokens / predicted_s if predicted_s > 0 else 0.0,
    }


def _frame(value: dict[str, Any]) -> bytes:
    return frame(dumps(value)).encode("ascii")
