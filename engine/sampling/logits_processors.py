"""What a request's parameters change in its logits, one row at a time: allowed ids, bias, penalties, forbidden tokens.

`Request.changes_logits` lists the parameters. The grammar's mask and the filters come afterwards, for all rows at once.
"""

import weakref

import torch
from torch import Tensor

from ..request import Request
from ..sampling_params import SamplingParams
from ..structured_output.grammar import Grammar

_MINUS_INFINITY = float("-inf")
_LARGEST = 3e38  # about float32's largest


class _TokenIdTensors:
    """A request's parameters per token id, as tensors made once: some hold tens of thousands."""

    def __init__(self, params: SamplingParams, device: torch.device) -> None:
        allowed = params.allowed_token_ids
        self.allowed = None if allowed is None else torch.tensor(allowed, device=device)
        self.bias_ids = torch.tensor(list(params.logit_bias), dtype=torch.int64, device=device)
        self.bias = torch.tensor(list(params.logit_bias.values()), device=device)


_tensors: dict[int, _TokenIdTensors] = {}  # by id of a SamplingParams; an entry is dropped with it


def _tensors_of(params: SamplingParams, device: torch.device) -> _TokenIdTensors:
    tensors = _tensors.get(id(params))
    if tensors is None:
        tensors = _tensors[id(params)] = _TokenIdTensors(params, device)
        weakref.finalize(params, _tensors.pop, id(params), None)
    return tensors


def process_logits(row: Tensor, request: Request, token_ids: list[int], *, grammar: Grammar | None) -> None:
    """Change one row of logits in place, [V] float32.

    `token_ids` are the request's, perhaps followed by drafts; the row is of the token that comes after them. `grammar`:
    the one that comes afterwards.
    """
    params = request.params
    if params.allowed_token_ids is not None or params.logit_bias:
        tensors = _tensors_of(params, row.device)
        if tensors.allowed is not None:
            kept = row[tensors.allowed]
            row.fill_(_MINUS_INFINITY)
            row[tensors.allowed] = kept
        row[tensors.bias_ids] += tensors.bias
    num_output_tokens = len(token_ids) - request.num_prompt_tokens
    _penalize(row, params, token_ids, num_output_tokens)
    forbidden = {word[-1] for word in request.bad_words if _is_about_to_end(word, token_ids)}
    if params.min_tokens > num_output_tokens:
        forbidden |= request.stop_token_ids
    if grammar is not None and params.ignore_eos:
        forbidden |= grammar.compiled.eos_token_ids  # they are no stop tokens then
    if forbidden:
        row[torch.tensor(sorted(forbidden), device=row.device)] = _MINUS_INFINITY


def _penalize(row: Tensor, params: SamplingParams, token_ids: list[int], num_output_tokens: int) -> None:
    """Repetition (Keskar et al. 2019) over prompt and output; presence and frequency (OpenAI) over the output."""
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(token_ids)), device=row.device)
        values = row[seen]
        penalty = params.repetition_penalty
        changed = torch.where(values > 0, values / penalty, values * penalty).clamp(-_LARGEST, _LARGEST)
        # A tiny penalty reaches infinity; a ban is there already.
        row[seen] = torch.where(values.isinf(), values, changed)
    if num_output_tokens and (params.presence_penalty or params.frequency_penalty):
        ids, counts = torch.unique(torch.tensor(token_ids[-num_output_tokens:], device=row.device), return_counts=True)
        row[ids] -= params.presence_penalty + params.frequency_penalty * counts


def _is_about_to_end(word: tuple[int, ...], token_ids: list[int]) -> bool:
    before = len(word) - 1
    return before == 0 or tuple(token_ids[-before:]) == word[:-1]
