"""Limit of the size of a result with logprobs: the size of all kept results together, --max-result-bytes."""

import dataclasses

from ...engine.core.sampling_params import SamplingParams
from ...engine.errors import InvalidRequestError
from .job import EVENT_BYTES, JOB_BYTES, LOGPROB_BYTES

_TOKEN_BYTES = EVENT_BYTES + 32  # one token with its id and text


def bounded(params: SamplingParams, *, max_bytes: int) -> SamplingParams:
    """Return the parameters, with a default of max_tokens cut to the number that fits in `max_bytes`.

    Raises InvalidRequestError if the request asks for more. Without logprobs a token takes too little to matter.
    """
    if params.logprobs is None:
        return params
    most = max(1, max_bytes // (params.n * (_TOKEN_BYTES + LOGPROB_BYTES * (1 + params.logprobs))))
    asked = {"max_tokens": params.max_tokens, "max_length": params.max_length}
    num_tokens, name = min(((num, name) for name, num in asked.items() if num is not None), default=(0, ""))
    if num_tokens > most:
        raise _refusal(params, name, num_tokens, most)
    if name or (params.default_max_tokens is not None and params.default_max_tokens <= most):
        return params
    return dataclasses.replace(params, default_max_tokens=most)


def most_bytes(params: SamplingParams, *, max_model_len: int) -> int:
    """Return the bytes that an answer may take, about."""
    num_tokens = min(filter(None, (params.max_tokens, params.max_length, params.default_max_tokens, max_model_len)))
    num_logprobs = 0 if params.logprobs is None else 1 + params.logprobs
    return JOB_BYTES + params.n * num_tokens * (_TOKEN_BYTES + LOGPROB_BYTES * num_logprobs)


def _refusal(params: SamplingParams, field: str, num_tokens: int, most: int) -> InvalidRequestError:
    name, logprobs = params.name_of(field), f"{params.name_of('logprobs')} {params.logprobs}"
    return InvalidRequestError(
        f"n {params.n} x {name} {num_tokens} x {logprobs} is more than a result may hold: lower one of them, "
        f"{name} to {most} or less, or start the server with more --max-result-bytes",
        param=name,
    )
