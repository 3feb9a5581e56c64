"""Samples: the tokens that a step samples, and the arrays that `sample` (sampler.py) reads, listed on the host.

The lists need no token that only the device knows, so they also serve a step that is launched before the last step's
tokens have come.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...core.batch import BatchRow
from ...core.request import Request
from ..models.forward_inputs import Arrays
from .logits_processors import LogitsProcessors
from .rng import sample_keys
from .sample_index import SampleIndex

# Constant, whatever a request asks for: the order of equally likely tokens depends on this number.
_NUM_TOP_LOGPROBS = 20


class Samples(NamedTuple):
    """S tokens to sample: one for each row that samples, and one more after each of the row's drafts."""

    rows: Sequence[BatchRow]  # rows that sample
    requests: Sequence[Request]  # [S]
    arrays: Arrays  # keys, temperatures and filters; at most S entries each
    more: Arrays  # changes of logits, rows with logprobs; of any size
    is_plain: bool  # no drafts, and only temperature and filters: token ids are the whole result

    @property
    def num_logprobs(self) -> int:
        """Number of samples with logprobs."""
        return len(self.more.get("logprob_rows", ()))

    @property
    def num_top(self) -> int:
        """Number of likeliest tokens that `sample` has to find."""
        if self.is_plain or not any(request.params.logprobs for request in self.requests):
            return 0
        return _NUM_TOP_LOGPROBS

    def constrained(self) -> list[tuple[int, BatchRow]]:
        """Return the rows that have grammars, each with the index of its first sample."""
        if self.is_plain:
            return []
        found, first = [], 0
        for row in self.rows:
            if row.request.grammar is not None:
                found.append((first, row))
            first += row.num_drafts + 1
        return found


def list_samples(rows: Sequence[BatchRow], processors: LogitsProcessors, *, vocab_size: int) -> Samples:
    """List the samples of the rows that sample. `processors` keep lists of the requests for the next step."""
    if not sum([row.num_drafts for row in rows]):
        requests = [row.request for row in rows]
        arrays = sampling_arrays(requests, [row.end for row in rows])
        marked = [
            (index, SampleIndex(row.request, (), row.end - row.request.num_tokens))
            for index, row in enumerate(rows)
            if not row.request.is_plainly_sampled
        ]
        return Samples(rows, requests, arrays, special_arrays(marked, processors, vocab_size), is_plain=not marked)
    indices = [SampleIndex(row.request, row.draft_token_ids[:i]) for row in rows for i in range(row.num_drafts + 1)]
    requests = [index.request for index in indices]
    arrays = sampling_arrays(requests, [index.position for index in indices])
    marked = [(row, index) for row, index in enumerate(indices) if not index.request.is_plainly_sampled]
    return Samples(rows, requests, arrays, special_arrays(marked, processors, vocab_size), is_plain=False)


def sampling_arrays(requests: Sequence[Request], positions: Sequence[int]) -> Arrays:
    """Return keys, temperatures (0 = greedy) and, if any, filters for sampling the tokens at these positions.

    Empty if all requests are greedy. A request may not have reached its position yet.
    """
    if False not in [request.is_greedy for request in requests]:
        return {}
    params = [request.params for request in requests]
    arrays: Arrays = {
        "keys": sample_keys([request.seed for request in requests], positions),
        "temperature": np.array([each.temperature for each in params], dtype=np.float32),
    }
    if any(each.top_k or each.top_p < 1.0 or each.min_p > 0.0 for each in params):
        arrays["top_k"] = np.array([each.top_k for each in params], dtype=np.int32)
        arrays["top_p"] = np.array([each.top_p for each in params], dtype=np.float32)
        arrays["min_p"] = np.array([each.min_p for each in params], dtype=np.float32)
    return arrays


def special_arrays(indices: Sequence[tuple[int, SampleIndex]], processors: LogitsProcessors, vocab_size: int) -> Arrays:
    """Return the arrays of the requests that are not sampled plainly, given with their rows of logits."""
    arrays = processors.arrays(indices, vocab_size=vocab_size)
    rows = [row for row, index in indices if index.request.params.logprobs is not None]
    return {**arrays, "logprob_rows": np.array(rows)} if rows else arrays
