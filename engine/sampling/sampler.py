"""Sampler: logits become token ids. A row's token depends on its own logits, parameters, seed and position only.

Order of work on a row: logits processors, grammar, temperature, top-k, top-p, min-p, Gumbel noise. The grammar comes
last of what changes logits, so no bias and no penalty brings back what it rules out; filters see only what it leaves.

`sampling_arrays` and `sample_token_ids` work on the device without waiting for it. Requests that need more
(`Request.needs_host_sampling`) go through `sample_rows`, which does the same and what has to be done on the host.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels import ops
from ..batch import NO_OUTPUT, BatchRow, RowFailure, RowOutput
from ..models.forward_inputs import Arrays
from ..outputs import TokenLogprobs
from ..request import Request
from ..structured_output.grammar import Grammar, TokenMasks
from .logits_processors import process_logits
from .rng import sample_key

NOT_FINITE = "the model's output for this request is not finite"
NOT_FINITE_TOKEN = -1
_MINUS_INFINITY = float("-inf")
_ALL_FORBIDDEN = "allowed_token_ids holds no token that bad_words and min_tokens allow here; allow another one"
_NOTHING_LEFT = "no token is left that it and allowed_token_ids, bad_words and min_tokens all allow; drop one of them"


class SampleIndex(NamedTuple):
    """Where one token is to be sampled: after a request's tokens and these drafts."""

    request: Request
    draft_token_ids: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """Of the token to sample, in the sequence."""
        return self.request.num_tokens + len(self.draft_token_ids)

    @property
    def token_ids(self) -> list[int]:
        """The tokens before it."""
        return [*self.request.token_ids, *self.draft_token_ids]


def sampling_arrays(indices: Sequence[tuple[Request, int]]) -> Arrays:
    """What is read of (request, position of the token to sample): keys, temperatures (0 = greedy), and filters if any.

    The request itself may not have reached the position yet. Empty if all are greedy.
    """
    params = [request.params for request, _ in indices]
    if all(each.is_greedy for each in params):
        return {}
    arrays: Arrays = {
        "keys": np.array([sample_key(request.seed, position) for request, position in indices], dtype=np.int64),
        "temperature": np.array([each.temperature for each in params], dtype=np.float32),
    }
    if any(each.top_k or each.top_p < 1.0 or each.min_p > 0.0 for each in params):
        arrays["top_k"] = np.array([each.top_k for each in params], dtype=np.int32)
        arrays["top_p"] = np.array([each.top_p for each in params], dtype=np.float32)
        arrays["min_p"] = np.array([each.min_p for each in params], dtype=np.float32)
    return arrays


def sample_token_ids(logits: Tensor, arrays: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Token ids [S] int64 of logits [S, V] float32, which may be overwritten, and each row's largest logit [S].

    `arrays`: those of `sampling_arrays`, on the device. A row that is not finite gets NOT_FINITE_TOKEN. Noise is keyed
    by seed and position.
    """
    largest, token_ids = logits.max(dim=-1)  # NaN wins a max, so `largest` shows every row that is not finite
    if "keys" in arrays:
        temperature = arrays["temperature"]
        # Relative to the row's largest first, so that a tiny temperature cannot overflow.
        scaled = (logits - largest[:, None]) / temperature[:, None].clamp_min(1e-5)
        if "top_k" in arrays:
            scaled = ops.filter_logits(scaled, arrays["top_k"], arrays["top_p"], arrays["min_p"])
        token_ids = torch.where(temperature > 0.0, ops.gumbel_argmax(scaled, arrays["keys"]), token_ids)
    return torch.where(torch.isfinite(largest), token_ids, NOT_FINITE_TOKEN), largest


def sample_indices(logits: Tensor, indices: Sequence[SampleIndex]) -> list[int]:
    """A token id for each index, NOT_FINITE_TOKEN where there is none; without grammars. logits [S, V] float32."""
    for row, index in enumerate(indices):
        if index.request.changes_logits(index.position - index.request.num_prompt_tokens):
            process_logits(logits[row], index.request, index.token_ids, grammar=None)
    return _sampled(logits, indices)[0]


def _sampled(logits: Tensor, indices: Sequence[SampleIndex]) -> tuple[list[int], list[float]]:
    arrays = sampling_arrays([(index.request, index.position) for index in indices])
    on_device = {name: torch.from_numpy(array).to(logits.device) for name, array in arrays.items()}
    token_ids, largest = sample_token_ids(logits, on_device)
    return token_ids.tolist(), largest.tolist()


def sample_rows(logits: Tensor, rows: Sequence[BatchRow], masks: TokenMasks | None = None) -> list[RowOutput]:
    """Sample for the rows of a batch that need it, and verify their drafts.

    logits [S, V] float32, of each row that samples as many as it has drafts and one more; overwritten. A row that is
    not finite fails, and so does one whose grammar leaves no token. `masks` is needed if a request has a grammar, which
    then has followed the row's tokens.

    After each draft the token is sampled that plain decoding would sample there: from the logits and the tokens up to
    there, with that position's own noise. Drafts are right as long as they are that token, so speculation changes no
    output, seeded sampling included: rejection sampling (Leviathan et al. 2023, Chen et al. 2023) keeps only the
    distribution, and what it samples depends on where drafts begin and end, that is on the load. A draft x that was not
    sampled is accepted with probability p(x), as there; one sampled from q with the same noise, with at least
    (1 - d) / (1 + d), d the total variation distance of p and q (Daliri et al. 2024, "Coupling without communication
    and drafter-invariant speculative decoding"), where rejection sampling accepts 1 - d. Measured on the demo model and
    its draft model at temperature 1: 0.95 beside 0.96 on stories, 0.48 beside 0.57 on book prose.
    """
    sampling = [row for row in rows if row.needs_sampling]
    indices = [
        SampleIndex(row.request, row.draft_token_ids[:count]) for row in sampling for count in range(row.num_drafts + 1)
    ]
    raw = logits.clone() if any(row.request.params.logprobs is not None for row in sampling) else logits
    _process(logits, sampling, indices, masks)
    accept = _Acceptance(*_sampled(logits, indices), raw)
    outputs: list[RowOutput] = []
    first = 0
    for row in rows:
        outputs.append(accept.output(row, first) if row.needs_sampling else NO_OUTPUT)
        first += row.num_drafts + 1 if row.needs_sampling else 0
    return outputs


def _process(
    logits: Tensor, rows: Sequence[BatchRow], indices: Sequence[SampleIndex], masks: TokenMasks | None
) -> None:
    """Logits processors, then the masks of grammars, which catch up with their requests."""
    for row, (request, drafts) in enumerate(indices):
        grammar = request.grammar
        if request.changes_logits(request.num_output_tokens + len(drafts)) or (grammar and request.params.ignore_eos):
            process_logits(logits[row], request, [*request.token_ids, *drafts], grammar=grammar)
    constrained = [row for row in rows if row.request.grammar is not None]
    if constrained:
        assert masks is not None
        grammars = [_caught_up(row.request) for row in constrained]
        at = [row for row, index in enumerate(indices) if index.request.grammar is not None]
        masks.add_to(logits, at, masks.allowed(grammars, [row.draft_token_ids for row in constrained]))


def _caught_up(request: Request) -> Grammar:
    assert request.grammar is not None
    request.grammar.follow(request.token_ids, num_prompt_tokens=request.num_prompt_tokens)
    return request.grammar


class _Acceptance:
    """From sampled ids to outputs: which drafts were right, which tokens grammars take, logprobs."""

    def __init__(self, token_ids: list[int], largest: list[float], raw: Tensor) -> None:
        """Of each index: the id, the largest processed logit, and the raw logits, [S, V]."""
        self._token_ids = token_ids
        self._largest = largest
        self._raw = raw

    def output(self, row: BatchRow, first: int) -> RowOutput:
        """The output of a row whose indices begin at `first`.

        Nothing is read after a draft that is wrong: a grammar advances with each.
        """
        request = row.request
        token_ids: list[int] = []
        finish_reason = None
        for draft in (*row.draft_token_ids, None):
            index = first + len(token_ids)
            token_id, failure = self._token_ids[index], None
            if request.grammar is not None:
                token_id, finish_reason, failure = self._constrained(request, request.grammar, index)
            elif token_id == NOT_FINITE_TOKEN:
                failure = _failure(request, self._largest[index])
            if failure is not None:
                if not token_ids:
                    return RowOutput(failure=failure)
                break  # the next step will find out whether that is so without drafts too
            token_ids.append(token_id)
            if token_id != draft or finish_reason is not None:
                break
        count = request.params.logprobs
        logprobs = None
        if count is not None:
            logprobs = tuple(_logprobs(self._raw[first + i], token_id, count) for i, token_id in enumerate(token_ids))
        forced_from = None if request.grammar is None else request.grammar.forced_from
        return RowOutput(tuple(token_ids), logprobs, finish_reason, row.num_drafts, forced_from=forced_from)

    def _constrained(self, request: Request, grammar: Grammar, index: int) -> tuple[int, str | None, RowFailure | None]:
        """The token that the grammar takes, why the output ends with it, or why there is none."""
        largest = self._largest[index]
        if largest != _MINUS_INFINITY and grammar.error is None:
            if not math.isfinite(largest):
                return NOT_FINITE_TOKEN, None, RowFailure(NOT_FINITE)
            token_id = grammar.take(self._token_ids[index])
            if grammar.error is None:
                return token_id, grammar.finish_reason, None
        if grammar.error is None and grammar.is_accepting:  # no token is left, and the output may end here
            return min(grammar.compiled.eos_token_ids), "stop", None
        outputs = request.params.structured_outputs
        assert outputs is not None
        message = f"{outputs.name} cannot be met any further: {grammar.error or _NOTHING_LEFT}"
        return NOT_FINITE_TOKEN, None, RowFailure(message, param=outputs.name)


def _failure(request: Request, largest: float) -> RowFailure:
    """Why a row without a grammar has no token; `largest` is its largest processed logit."""
    if largest == _MINUS_INFINITY and request.params.allowed_token_ids is not None:
        return RowFailure(_ALL_FORBIDDEN, param="allowed_token_ids")
    return RowFailure(NOT_FINITE)


def _logprobs(row: Tensor, token: int, count: int) -> TokenLogprobs:
    """Of the sampled token and the `count` most likely ones, from raw logits [V]."""
    logprobs = row.log_softmax(dim=-1)
    values, ids = logprobs.topk(count)
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token, float(logprobs[token]), top, int((row > row[token]).sum()) + 1)
