"""The limit of an answer's tokens: one above the free context is cut to fit, and the answer's header says to what."""

from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request

from ....engine.core.sampling_params import SamplingParams
from ...http.response_middleware import answer_headers
from ...jobs.job import Job
from ...service import service_of


def cut_to_fit(params: SamplingParams, *, is_strict: bool = False) -> SamplingParams:
    """Make max_tokens a limit that is cut to what fits, unless the server is strict.

    With logprobs the size of a result bounds max_tokens too. Then too large a max_tokens is refused, as on /generate.
    """
    if params.max_tokens is None or params.logprobs is not None or is_strict:
        return params
    return replace(params, max_tokens=None, default_max_tokens=params.max_tokens)


def announce_cut(request: Request, jobs: Sequence[Job], *, limit: int | None) -> None:
    """Say in X-Max-Tokens how many tokens an answer can have if the context holds fewer than `limit`."""
    rest = service_of(request).engine.max_model_len - max(job.num_prompt_tokens for job in jobs)
    if rest < (limit or 0):
        answer_headers(request)["X-Max-Tokens"] = str(rest)
