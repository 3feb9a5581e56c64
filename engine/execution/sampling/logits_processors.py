"""Logits processors for all rows of a step at once: bias, forbidden and allowed token ids, penalties.

`LogitsProcessors` lists the changed entries on the host, `process_logits` (sampler.py) changes them on the device. A
previous token that only the device knows has the id LAST in the lists.
`Request.changes_logits` lists the parameters. The filters come afterwards.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ...core.request import Request
from ..models.forward_inputs import Array, Arrays
from .sampled import SampleIndex

LAST = -1  # stands for the id of a token that only the device knows
ALWAYS = -1  # previous token of an entry that applies after any token
_MINUS_INFINITY = float("-inf")


class _RequestArrays:
    """Arrays of a request's parameters per token id and of the tokens that its penalties count; some are long."""

    def __init__(self, request: Request, *, vocab_size: int) -> None:
        params = request.params
        self.bias_ids = np.fromiter(params.logit_bias, dtype=np.int64, count=len(params.logit_bias))
        self.bias = np.fromiter(params.logit_bias.values(), dtype=np.float32, count=len(params.logit_bias))
        self.allowed = None if params.allowed_token_ids is None else _mask(params.allowed_token_ids, vocab_size)
        self.is_penalized = bool(
            params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty
        )
        prompt = request.token_ids[: request.num_prompt_tokens] if params.repetition_penalty != 1.0 else []
        distinct = np.unique(np.array(prompt, dtype=np.int64))
        self.num_prompt_ids = len(distinct)  # the repetition penalty alone counts the prompt
        self._seen = np.empty(len(distinct) + request.max_num_tokens, dtype=np.int64)
        self._seen[: len(distinct)] = distinct
        self._num_seen = request.num_prompt_tokens  # number of the request's tokens that _seen covers

    def penalized_ids(self, at: SampleIndex) -> Array:
        """Return the penalized ids: of the prompt, then of each token of the output, then LAST or drafts.

        The next call overwrites the returned array, unless its drafts begin with this call's drafts.
        """
        tokens = at.request.token_ids
        if new := tokens[self._num_seen :]:
            end = self.num_prompt_ids + at.request.num_output_tokens
            self._seen[end - len(new) : end] = new
            self._num_seen = len(tokens)
        end = self.num_prompt_ids + at.num_output_tokens
        self._seen[end - len(at.draft_token_ids) - at.num_unknown : end] = (
            LAST if at.num_unknown else at.draft_token_ids
        )
        return self._seen[:end]


def _mask(token_ids: Sequence[int], vocab_size: int) -> Array:
    """Return a mask [W] int32 with a bit for each token id, as in `TokenMasks`."""
    is_allowed = np.zeros(-(-vocab_size // 32) * 32, dtype=bool)
    is_allowed[np.array(token_ids)] = True
    return np.packbits(is_allowed, bitorder="little").view(np.int32)


class _Change(NamedTuple):
    """Row of logits with the request's index and arrays."""

    row: int
    at: SampleIndex
    arrays: _RequestArrays


class LogitsProcessors:
    """Lists the changes of a step's logits. Keeps a request's arrays as long as the request is in every step."""

    def __init__(self) -> None:
        self._arrays: dict[Request, _RequestArrays] = {}

    def arrays(self, indices: Iterable[tuple[int, SampleIndex]], *, vocab_size: int) -> Arrays:
        """Return the changes of logits [S, vocab_size] for (row, index) pairs; empty if nothing changes."""
        kept, self._arrays = self._arrays, {}
        changes: list[_Change] = []
        for row, index in indices:
            request = index.request
            if request.changes_logits(index.num_output_tokens):
                arrays = (
                    self._arrays.get(request) or kept.get(request) or _RequestArrays(request, vocab_size=vocab_size)
                )
                self._arrays[request] = arrays
                changes.append(_Change(row, index, arrays))
        return {**_additions(changes), **_penalties(changes), **_allowed(changes)} if changes else {}


def _additions(changes: Sequence[_Change]) -> Arrays:
    """Return the added entries: biases, and minus infinity for forbidden tokens, always or after one token only."""
    parts: list[tuple[int, Array, Array, Array]] = []
    for row, at, arrays in changes:
        pairs = _forbidden(at)
        if not pairs and not len(arrays.bias):
            continue
        forbidden = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        ids = np.concatenate([arrays.bias_ids, forbidden[:, 0]])
        values = np.concatenate([arrays.bias, np.full(len(forbidden), _MINUS_INFINITY, dtype=np.float32)])
        after = np.concatenate([np.full(len(arrays.bias), ALWAYS), forbidden[:, 1]])
        parts.append((row, ids, values, after))
    if not parts:
        return {}
    entries = {
        "add_rows": np.repeat([row for row, *_ in parts], [len(ids) for _, ids, _, _ in parts]),
        "add_ids": np.concatenate([ids for _, ids, _, _ in parts]),
        "add_values": np.concatenate([values for _, _, values, _ in parts]),
    }
    after = np.concatenate([after for *_, after in parts])
    return {**entries, "add_after": after} if (after != ALWAYS).any() else entries


def _forbidden(index: SampleIndex) -> list[tuple[int, int]]:
    """Return pairs (forbidden token id, the token after which it is forbidden)."""
    request = index.request
    forbidden = []
    for *before, last in request.bad_words:
        after = before.pop() if before and index.num_unknown else ALWAYS
        if index.ends_with(tuple(before)):
            forbidden.append((last, after))
    if request.params.min_tokens > index.num_output_tokens:
        forbidden += [(token_id, ALWAYS) for token_id in request.stop_token_ids]
    if request.grammar is not None and request.params.ignore_eos:  # ignore_eos takes them out of the stop tokens
        forbidden += [(token_id, ALWAYS) for token_id in request.grammar.eos_token_ids]
    return forbidden


def _penalties(changes: Sequence[_Change]) -> Arrays:
    """Return each penalized row's penalties and entries; a token has as many entries as occurrences."""
    changes = [change for change in changes if change.arrays.is_penalized]
    if not changes:
        return {}
    all_params = [change.at.request.params for change in changes]
    seen = [change.arrays.penalized_ids(change.at) for change in changes]
    lengths = np.array(list(map(len, seen)))
    penalties = {
        "penalty_rows": np.array([change.row for change in changes]),
        "penalties": np.array(
            [[params.repetition_penalty, params.presence_penalty, params.frequency_penalty] for params in all_params],
            dtype=np.float32,
        ),
        "seen_owners": np.repeat(np.arange(len(seen)), lengths),
        "seen_ids": np.concatenate(seen),
    }
    if not any(params.presence_penalty or params.frequency_penalty for params in all_params):
        return penalties
    places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    is_output = places >= np.repeat([change.arrays.num_prompt_ids for change in changes], lengths)
    return {**penalties, "seen_counts": is_output.astype(np.float32)}


def _allowed(changes: Sequence[_Change]) -> Arrays:
    """Return the masks of the rows that have allowed token ids."""
    masks = [(row, arrays.allowed) for row, _, arrays in changes if arrays.allowed is not None]
    if not masks:
        return {}
    return {"allowed_rows": np.array([row for row, _ in masks]), "allowed_masks": np.stack([mask for _, mask in masks])}
