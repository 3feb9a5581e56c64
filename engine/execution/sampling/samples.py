"""Samples: the tokens that a step samples, and the arrays that `sample` (sampler.py) reads, listed on the host.

The lists need no token that only the device knows, so they also serve a step that is launched before the last step's
tokens have come.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ...core.batch import BatchRow
from ...core.request import Request
from ..models.forward_inputs import Arrays
from .logits_processors import LogitsProcessors
from .rng import sample_keys
from .sampled import SampleIndex

# Constant, whatever a request asks for: the order of equally likely tokens depends on this number.
_NUM_TOP_LOGPROBS = 20


class Samples(NamedTuple):
    """S tokens to sample: one for each row that samples, and one more after each of the row's drafts."""

    rows: Sequence[BatchRow]  # rows that sample
    requests: Sequence[Request]  # [S]
    arrays: Arrays  # keys, temperatures and filters; at most S entries each
    more: Arrays  # changes of logits, rows with logprobs; of any size
    is_plain: bool  # no drafts, and only temperature and filters: token ids are the whole result
    constrained: Sequence[tuple[int, BatchRow]] = ()  # rows with grammars, with the index of the first sample
    num_logprobs: int = 0  # samples with logprobs
    num_top: int = 0  # likeliest tokens to find for logprobs


def list_samples(rows: Sequence[BatchRow], processors: LogitsProcessors, *, vocab_size: int) -> Samples:
    """List the samples of the rows that sample. `processors` keep lists of the requests for the next step."""
    has_drafts = sum([row.num_drafts for row in rows]) > 0
    if has_drafts:
        indices = [SampleIndex(row.request, row.draft_token_ids[:i]) for row in rows for i in range(row.num_drafts + 1)]
        requests, positions = [index.request for index in indices], [index.position for index in indices]
        marked = [(at, index) for at, index in enumerate(indices) if not index.request.is_plainly_sampled]
    else:
        requests, positions = [row.request for row in rows], [row.end for row in rows]
        marked = [
            (at, SampleIndex(row.request, (), row.end - row.request.num_tokens))
            for at, row in enumerate(rows)
            if not row.request.is_plainly_sampled
        ]
    arrays = sampling_arrays(requests, positions)
    more = processors.arrays(marked, vocab_size=vocab_size)
    if not marked:
        return Samples(rows, requests, arrays, more, is_plain=not has_drafts)
    with_logprobs = [at for at, index in marked if index.request.params.logprobs is not None]
    if with_logprobs:
        more["logprob_rows"] = np.array(with_logprobs)
    firsts = accumulate([row.num_drafts + 1 for row in rows], initial=0)
    return Samples(
        rows,
        requests,
        arrays,
        more,
        is_plain=False,
        constrained=[(at, row) for at, row in zip(firsts, rows, strict=False) if row.request.grammar is not None],
        num_logprobs=len(with_logprobs),
        num_top=_NUM_TOP_LOGPROBS if any(index.request.params.logprobs for _, index in marked) else 0,
    )


def sampling_arrays(requests: Sequence[Request], positions: Sequence[int]) -> Arrays:
    """Return keys, temperatures (0 = greedy) and, if any, filters for sampling the tokens at these positions.

    Empty if all requests are greedy. A request may not have reached its position yet.
    """
    if False not in [request.is_greedy for request in requests]:
        return {}
    all_params = [request.params for request in requests]
    arrays: Arrays = {
        "keys": sample_keys([request.seed for request in requests], positions),
        "temperature": np.array(
            [0.0 if request.is_greedy else request.params.temperature for request in requests], dtype=np.float32
        ),
    }
    if any(params.top_k or params.top_p < 1.0 or params.min_p > 0.0 for params in all_params):
        arrays["top_k"] = np.array([params.top_k for params in all_params], dtype=np.int32)
        arrays["top_p"] = np.array([params.top_p for params in all_params], dtype=np.float32)
        arrays["min_p"] = np.array([params.min_p for params in all_params], dtype=np.float32)
    return arrays
