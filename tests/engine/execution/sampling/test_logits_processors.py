"""Changing all rows at once equals plain Python that changes one row at a time."""

import math
import random
from typing import Any

import pytest
import torch

from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.execution.sampling.logits_processors import LogitsProcessors
from splitfuse.engine.execution.sampling.sampled import SampleIndex
from splitfuse.engine.execution.sampling.sampler import process_logits

VOCAB_SIZE = 50


def random_request(rng: random.Random) -> Request:
    fields: dict[str, Any] = {
        "repetition_penalty": rng.choice([0.01, 1.3, 2.0]),
        "presence_penalty": rng.uniform(-2, 2),
        "frequency_penalty": rng.uniform(-2, 2),
        "min_tokens": rng.randint(0, 8),
        "logit_bias": {str(token): rng.uniform(-9, 9) for token in rng.sample(range(VOCAB_SIZE), 5)},
        "allowed_token_ids": rng.sample(range(VOCAB_SIZE), 20),
    }
    fields = {name: value for name, value in fields.items() if rng.random() < 0.4}
    words = tuple(tuple(rng.choices(range(6), k=rng.randint(1, 3))) for _ in range(rng.choice([0, 0, 4])))
    request = Request(
        request_id="r",
        prompt_token_ids=rng.choices(range(VOCAB_SIZE), k=rng.randint(1, 20)),
        params=SamplingParams(**fields),
        max_num_tokens=60,
        seed=0,
        stop_token_ids=frozenset(rng.sample(range(VOCAB_SIZE), 3)),
        bad_words=words,
    )
    request.token_ids += rng.choices(range(6), k=rng.randint(0, 12))
    return request


def expected(logits: list[float], request: Request, token_ids: list[int]) -> list[float]:
    params, output = request.params, token_ids[request.num_prompt_tokens :]
    changed = [x + params.logit_bias.get(token, 0.0) for token, x in enumerate(logits)]
    for token in set(token_ids):
        changed[token] *= params.repetition_penalty if changed[token] <= 0 else 1 / params.repetition_penalty
    for token in set(output):
        changed[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    forbidden = {
        word[-1] for word in request.bad_words if tuple(token_ids[len(token_ids) - len(word) + 1 :]) == word[:-1]
    }
    if params.min_tokens > len(output):
        forbidden |= request.stop_token_ids
    if params.allowed_token_ids is not None:
        forbidden |= set(range(VOCAB_SIZE)) - set(params.allowed_token_ids)
    return [-math.inf if token in forbidden else x for token, x in enumerate(changed)]


@pytest.mark.parametrize("seed", range(20))
def test_changes_are_those_of_one_row_at_a_time(seed: int) -> None:
    """Several steps, from which some requests are absent; the last token is known or not, or has drafts after it."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    requests = [random_request(rng) for _ in range(8)]
    processors = LogitsProcessors()
    for _ in range(6):
        logits = torch.randn(20, VOCAB_SIZE)
        last_token_ids = torch.full((20,), -5)
        indices: dict[int, SampleIndex] = {}
        wanted = logits.tolist()
        for request in rng.sample(requests, rng.randint(0, len(requests))):
            row = len(indices)
            if rng.random() < 0.3:
                drafts = tuple(rng.choices(range(6), k=2))
                for count in range(3):
                    indices[row + count] = SampleIndex(request, drafts[:count])
                    wanted[row + count] = expected(wanted[row + count], request, [*request.token_ids, *drafts[:count]])
            elif rng.random() < 0.5:
                unknown = rng.randrange(6)
                last_token_ids[row] = unknown
                indices[row] = SampleIndex(request, num_unknown=1)
                wanted[row] = expected(wanted[row], request, [*request.token_ids, unknown])
            else:
                indices[row] = SampleIndex(request)
                wanted[row] = expected(wanted[row], request, request.token_ids)
            if len(indices) > 16:
                break
        arrays = processors.arrays(indices.items(), vocab_size=VOCAB_SIZE)
        fields = {name: torch.from_numpy(array) for name, array in arrays.items()}
        process_logits(logits, fields, last_token_ids)
        torch.testing.assert_close(logits, torch.tensor(wanted), rtol=1e-5, atol=1e-5)
        for request in requests:
            request.token_ids += rng.choices(range(6), k=rng.randint(0, 2))


def test_a_request_is_forgotten_with_the_step_that_has_it_not() -> None:
    processors = LogitsProcessors()
    request = random_request(random.Random(1))
    request.bad_words = ((1,),)
    processors.arrays([(0, SampleIndex(request))], vocab_size=VOCAB_SIZE)
    assert list(processors._arrays) == [request]
    assert processors.arrays([], vocab_size=VOCAB_SIZE) == {}
    assert not processors._arrays
