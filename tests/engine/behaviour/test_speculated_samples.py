"""Verification samples the tokens of plain decoding, for every possible draft, and in distribution."""

import itertools
import math

import pytest
import torch
from sampled_rows import sample_rows
from torch import Tensor

from splitfuse.engine import SamplingParams
from splitfuse.engine.core.batch import BatchRow
from splitfuse.engine.core.request import Request

pytestmark = pytest.mark.sampled(6)

NUM_DRAFTS = 3
# 3 of 100,000 seeds lie beyond four standard deviations of a chi-square with many degrees of freedom.
MAX_SIGMAS = 4.0


def table(size: int, seed: int) -> Tensor:
    """Return the next token's logits for each last token: a model of one token of context."""
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) * 1.5


def request(seed: int, params: SamplingParams) -> Request:
    return Request(
        request_id=str(seed),
        prompt_token_ids=[0],
        params=params,
        max_num_tokens=100,
        seed=seed,
        stop_token_ids=frozenset(),
    )


def verify(model: Tensor, requests: list[Request], drafts: list[tuple[int, ...]]) -> list[list[int]]:
    """Run one step and return each request's tokens, the first of them right or not."""
    rows, last = [], []
    for sequence, draft in zip(requests, drafts, strict=True):
        row = BatchRow(sequence, sequence.num_tokens - 1, 1 + len(draft), needs_sampling=True, num_drafts=len(draft))
        rows.append(row.with_drafts(draft))
        last += [sequence.token_ids[-1], *draft]
    outputs = sample_rows(model[torch.tensor(last)].clone(), rows)
    assert all(output.token_ids for output in outputs)
    return [list(output.token_ids) for output in outputs]


def generate(model: Tensor, sequence: Request, num_tokens: int) -> list[int]:
    """Generate by plain decoding."""
    while sequence.num_output_tokens < num_tokens:
        sequence.token_ids += verify(model, [sequence], [()])[0]
    return sequence.token_ids[sequence.num_prompt_tokens :]


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {}, {"top_k": 2, "temperature": 1.5}, {"presence_penalty": 1.0}]
)
def test_every_possible_draft_gives_the_samples_of_plain_decoding(params: dict[str, float]) -> None:
    model, asked = table(3, seed=1), SamplingParams(max_tokens=99, **params)  # type: ignore[arg-type]
    drafts = [d for n in range(NUM_DRAFTS + 1) for d in itertools.product(range(3), repeat=n)]
    for seed in range(10):
        plain = generate(model, request(seed, asked), NUM_DRAFTS + 1)
        for draft, tokens in zip(drafts, verify(model, [request(seed, asked) for _ in drafts], drafts), strict=True):
            num_right = next((i for i, (a, b) in enumerate(zip(draft, plain, strict=False)) if a != b), len(draft))
            assert tokens == plain[: num_right + 1], draft


@pytest.mark.parametrize(
    "params", [{"top_k": 4, "temperature": 1.3}, {"top_p": 0.9, "min_p": 0.05, "temperature": 0.8}], ids=str
)
def test_runs_are_distributed_as_the_models_tokens(params: dict[str, float]) -> None:
    """Compare 40,000 outputs of three tokens, by steps with two drafts, with the model's probabilities."""
    size, num, batch = 6, 40_000, 10_000
    model, asked = table(size, seed=2), SamplingParams(max_tokens=99, **params)  # type: ignore[arg-type]
    likeliest = model.argmax(dim=1).tolist()
    counts = torch.zeros(size, size, size)
    for start in range(0, num, batch):
        requests = [request(seed, asked) for seed in range(start, start + batch)]
        unfinished = requests
        while unfinished:
            # The drafter is right more often than chance, but never for every third request.
            drafts = []
            for sequence in unfinished:
                first = likeliest[sequence.token_ids[-1]] if sequence.seed % 3 else size - 1
                drafts.append((first, likeliest[first]))
            for sequence, tokens in zip(unfinished, verify(model, unfinished, drafts), strict=True):
                sequence.token_ids += tokens
            unfinished = [sequence for sequence in unfinished if sequence.num_output_tokens < 3]
        outputs = torch.tensor([sequence.token_ids[1:4] for sequence in requests])
        counts.index_put_(tuple(outputs.T), torch.ones(batch), accumulate=True)
    steps = torch.stack([probabilities(row, asked) for row in model])
    expected = num * steps[0, :, None, None] * steps[:, :, None] * steps[None]
    assert not counts[expected == 0].any()
    often, rare = expected >= 5, (expected > 0) & (expected < 5)
    cells = torch.cat(
        [
            torch.stack([counts[often], expected[often]], 1),
            torch.stack([counts[rare].sum(), expected[rare].sum()])[None],
        ]
    )
    cells = cells[cells[:, 1] > 0]
    chi_square = float(((cells[:, 0] - cells[:, 1]) ** 2 / cells[:, 1]).sum())
    freedom = len(cells) - 1
    assert chi_square < freedom + MAX_SIGMAS * math.sqrt(2 * freedom), f"{chi_square:.1f} of {freedom}"


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """Return the probabilities [V] of one sample, with the filters applied by definition."""
    logits = logits.double() / params.temperature
    if params.top_k:
        logits[logits < logits.topk(params.top_k).values[-1]] = -math.inf
    order = logits.sort(descending=True)
    before = order.values.softmax(0).cumsum(0) - order.values.softmax(0)
    logits[order.indices[before >= params.top_p]] = -math.inf
    p = logits.softmax(0)
    return torch.where(p >= params.min_p * p.max(), p, 0.0).div_(p[p >= params.min_p * p.max()].sum())
