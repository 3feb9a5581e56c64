"""The sampler's distribution, its filters, and its independence of batch-mates."""

import math
from collections import Counter

import pytest
import torch
from sampled_rows import sample_rows

from splitfuse.engine.core.batch import BatchRow, RowOutput
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams

NUM_DRAWS = 5000


def request(
    *,
    seed: int = 0,
    prompt: tuple[int, ...] = (1,),
    output: tuple[int, ...] = (),
    bad_words: object = (),
    **params: object,
) -> Request:
    request = Request(
        request_id="r",
        prompt_token_ids=list(prompt),
        params=SamplingParams(**params),  # type: ignore[arg-type]
        max_num_tokens=10_000,
        seed=seed,
        stop_token_ids=frozenset({0}),
        bad_words=bad_words,  # type: ignore[arg-type]
    )
    request.token_ids.extend(output)
    return request


def sample(logits: torch.Tensor, requests: list[Request]) -> list[RowOutput]:
    return sample_rows(
        logits, [BatchRow(request, request.num_tokens - 1, 1, needs_sampling=True) for request in requests]
    )


def sample_counts(logits: list[float], *, num_draws: int = NUM_DRAWS, **params: object) -> Counter[int]:
    """Count sampled tokens over many seeds."""
    requests = [request(seed=seed, **params) for seed in range(num_draws)]
    results = sample(torch.tensor([logits]).repeat(num_draws, 1), requests)
    return Counter(token_id for output in results for token_id in output.token_ids)


def assert_distributed(counts: Counter[int], expected: list[float]) -> None:
    """Assert a distribution by a chi-square test with about one false alarm in a million."""
    assert set(counts) <= {token for token, p in enumerate(expected) if p > 0}
    terms = [(counts[token] - NUM_DRAWS * p) ** 2 / (NUM_DRAWS * p) for token, p in enumerate(expected) if p > 0]
    freedom = len(terms) - 1
    assert sum(terms) < freedom + 5 * math.sqrt(2 * freedom) + 15, counts


def softmax(logits: list[float]) -> list[float]:
    weights = [math.exp(x) for x in logits]
    return [weight / sum(weights) for weight in weights]


LOGITS = [0.0, 1.0, 2.0, -1.0, 0.5, -3.0, 1.5]


def kept(probabilities: list[float], tokens: set[int]) -> list[float]:
    total = sum(probabilities[token] for token in tokens)
    return [p / total if token in tokens else 0.0 for token, p in enumerate(probabilities)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_temperature(temperature: float) -> None:
    assert_distributed(sample_counts(LOGITS, temperature=temperature), softmax([x / temperature for x in LOGITS]))


@pytest.mark.parametrize(
    ("params", "tokens"),
    [
        ({"top_k": 3}, {2, 6, 1}),
        ({"top_k": 100}, set(range(7))),
        ({"top_p": 0.5}, {2, 6}),  # 0.42, then 0.26 crosses
        ({"top_p": 0.0}, {2}),
        ({"top_k": 3, "top_p": 0.6}, {2, 6}),  # top-p of the tokens that top-k leaves
        ({"min_p": 0.3}, {2, 6, 1}),  # 0.42·0.3 = 0.13 < 0.16
        ({"top_k": 1}, {2}),
    ],
)
def test_filters(params: dict[str, object], tokens: set[int]) -> None:
    assert_distributed(sample_counts(LOGITS, **params), kept(softmax(LOGITS), tokens))


def test_top_p_beyond_the_first_candidates() -> None:
    flat = [0.0] * 3000
    tokens = sample_counts(flat, top_p=0.9)
    assert len(tokens) > 2100  # equal tokens are kept together, whatever the limit
    steep = [-i * 1e-3 for i in range(3000)]
    probabilities = softmax(steep)
    inside = next(i for i in range(3000) if sum(probabilities[: i + 1]) >= 0.9)
    assert inside > 1024
    assert abs(max(sample_counts(steep, num_draws=20_000, top_p=0.9)) - inside) <= 2


def test_draws_depend_on_seed_and_position_only() -> None:
    torch.manual_seed(0)
    logits = torch.randn(40, 500)
    requests = [request(seed=i, output=(3,) * (i % 7), temperature=1.3) for i in range(40)]
    together = sample(logits.clone(), requests)
    alone = [sample(logits[i : i + 1].clone(), [requests[i]])[0] for i in range(40)]
    mixed = sample(logits.flip(0), [*requests[::-1]])[::-1]
    assert together == alone == mixed
    moved = [request(seed=i, output=(3,) * (i % 7 + 1), temperature=1.3) for i in range(40)]
    assert sample(logits.clone(), moved) != together


def test_top_k_1_keeps_one_of_equal_logits() -> None:
    assert sample_counts([0.0, 2.0, 2.0, 1.0], top_k=1) == sample_counts([0.0, 2.0, 2.0, 1.0], temperature=0.0)
    assert len(sample_counts([0.0, 2.0, 2.0, 1.0], top_k=2)) == 2


def test_greedy_beside_random_rows() -> None:
    logits = torch.tensor([LOGITS, LOGITS, LOGITS])
    results = sample(logits, [request(temperature=0), request(temperature=5.0), request(temperature=0)])
    assert [results[0], results[2]] == [RowOutput((2,)), RowOutput((2,))]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_fails_alone(bad: float) -> None:
    logits = torch.tensor([LOGITS, [*LOGITS[:-1], bad], LOGITS])
    results = sample(logits, [request(temperature=0)] * 3)
    assert results[1].failure is not None
    assert results[0] == results[2] == RowOutput((2,))


def test_bias_allowed_and_forbidden() -> None:
    def greedy(**params: object) -> int:
        result = sample(torch.tensor([LOGITS]), [request(temperature=0, **params)])[0]
        (token_id,) = result.token_ids
        return token_id

    assert greedy(logit_bias={"5": 100, "2": -100}) == 5
    assert greedy(allowed_token_ids=[3, 5]) == 3
    assert greedy(bad_words=((2,),)) == 6
    assert greedy(bad_words=((4, 2),), output=(4,)) == 6
    assert greedy(bad_words=((4, 2),), output=(5,)) == 2
    assert greedy(logit_bias={"0": 100}) == 0
    assert greedy(logit_bias={"0": 100}, min_tokens=1) == 2


def test_penalties() -> None:
    logits = torch.tensor([LOGITS])
    params = {"temperature": 0, "repetition_penalty": 2.0, "frequency_penalty": 0.5}
    sample(logits, [request(prompt=(2, 3), output=(1, 1), **params)])
    assert logits[0].tolist() == pytest.approx([0.0, 1 / 2 - 1.0, 2 / 2, -2.0, 0.5, -3.0, 1.5])
    logits = torch.tensor([LOGITS])
    sample(logits, [request(prompt=(2,), output=(1, 1), temperature=0, presence_penalty=1.5)])
    assert logits[0].tolist() == pytest.approx([0.0, -0.5, 2.0, -1.0, 0.5, -3.0, 1.5])
    logits = torch.tensor([LOGITS])
    sample(logits, [request(prompt=(2,), output=(), temperature=0, presence_penalty=1.5, frequency_penalty=0.5)])
    assert logits[0].tolist() == LOGITS, "nothing is counted before the first token"


def test_logprobs_are_the_models_own() -> None:
    result = sample(torch.tensor([LOGITS]), [request(temperature=0, logprobs=2, logit_bias={"5": 100})])[0]
    assert result.logprobs is not None
    (logprobs,) = result.logprobs
    expected = torch.tensor(LOGITS).log_softmax(-1)
    assert logprobs.token_id == 5
    assert logprobs.rank == 7
    assert logprobs.logprob == pytest.approx(float(expected[5]), abs=1e-5)
    assert logprobs.top == ((2, pytest.approx(float(expected[2]))), (6, pytest.approx(float(expected[6]))))
