"""The schedule never changes the answer: float32 tokens equal transformers' under random schedules of every kind."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from faulty_drafters import Prophet, speculate
from random_schedule import Arrival, random_llm, run_schedule
from tiny_models import CONFIGS, HYBRIDS, VARIANTS, VOCAB_SIZE, greedy, save_model

from splitfuse.engine import LLM, SamplingParams

pytestmark = pytest.mark.sampled(24)

NUM_NEW = 24
# A longer run: SPLITFUSE_TEST_PROMPTS=50 SPLITFUSE_TEST_SCHEDULES=50 pytest tests/engine/behaviour/test_parity.py
NUM_PROMPTS = int(os.environ.get("SPLITFUSE_TEST_PROMPTS", "16"))
NUM_SCHEDULES = int(os.environ.get("SPLITFUSE_TEST_SCHEDULES", "2"))

Case = tuple[str, list[list[int]], list[list[int]], dict[str, Any]]


# A model with recurrent layers has room for drafts only if drafts are configured.
DRAFTS = {"method": "ngram", "prompt_lookup_min": 1, "adaptive": False, "num_speculative_tokens": 9}


@pytest.fixture(scope="module", params=sorted({**CONFIGS, **HYBRIDS}))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Model folder, prompts of 1 to 300 tokens, transformers' answers, and settings."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save_model(request.param, folder)
    rng = random.Random(request.param)
    num_prompts = 20 if request.param in VARIANTS else NUM_PROMPTS
    lengths = [1, 2, 15, 16, 17, 32, 300] + [rng.randint(1, 300) for _ in range(num_prompts - 7)]
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]
    for index in range(10, num_prompts, 2):  # some prompts share a prefix, for the prefix cache
        beginning = rng.choice(prompts[:index])[: rng.randint(1, 200)]
        prompts[index] = (beginning + prompts[index])[:300]
    options = {"speculative_config": DRAFTS} if request.param in HYBRIDS else {}
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    guesses = [output.outputs[0].token_ids for output in LLM(str(folder), dtype="float32").generate(prompts, params)]
    pairs = zip(prompts, guesses, strict=True)
    return str(folder), prompts, [greedy(model, prompt, NUM_NEW, guess=guess) for prompt, guess in pairs], options


def foretell(llm: LLM, rng: random.Random, answers: dict[tuple[tuple[int, ...], int], list[int]]) -> None:
    """Install a drafter that is right 17 times in 20."""
    drafter = Prophet(answers, rng=random.Random(rng.random()), vocab_size=VOCAB_SIZE)
    speculate(llm, drafter, max_drafts=rng.randint(1, 9), adaptive=rng.random() < 0.3)


@pytest.mark.parametrize("seed", range(NUM_SCHEDULES))
def test_greedy_tokens_equal_transformers_under_random_schedules(case: Case, seed: int) -> None:
    folder, prompts, expected, options = case
    rng = random.Random(f"{folder}{seed}")
    llm = random_llm(
        rng, folder, max_tokens_of_one=300 + NUM_NEW, block_sizes=(16, 32) if seed % 2 else (1, 4, 8, 16), **options
    )
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    if rng.random() < 0.5:
        foretell(llm, rng, {(tuple(prompt), 0): tokens for prompt, tokens in zip(prompts, expected, strict=True)})
    arrivals = [Arrival(prompt, params, at_step=rng.randint(0, 60)) for prompt in prompts]
    leavers = [
        Arrival(rng.choice(prompts), params, at_step=rng.randint(0, 60), abort_after=rng.randint(0, 12))
        for _ in range(10)
    ]
    run_schedule(llm, arrivals + leavers)
    for arrival, tokens in zip(arrivals, expected, strict=True):
        assert arrival.output.token_ids == tokens, f"{llm.config}"


def test_a_pool_for_one_preempts_and_still_gives_the_same_tokens(case: Case) -> None:
    folder, prompts, expected, options = case
    llm = LLM(
        model=folder,
        dtype="float32",
        block_size=4,
        num_kv_blocks=(300 + NUM_NEW) // 4,
        max_num_batched_tokens=200,
        **options,
    )
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    # Short prompts grow by many blocks, so that requests compete for blocks.
    pairs = sorted(zip(prompts, expected, strict=True), key=lambda pair: len(pair[0]))[:30]
    arrivals = [Arrival(prompt, params) for prompt, _ in pairs]
    assert run_schedule(llm, arrivals) > 0, "the test is meant to preempt"
    assert [arrival.output.token_ids for arrival in arrivals] == [tokens for _, tokens in pairs]


def test_seeded_sampling_is_the_same_alone_and_with_batch_mates(case: Case) -> None:
    folder, prompts, _, options = case
    rng = random.Random(7)
    choices = [{}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.02}, {"top_k": 50, "top_p": 0.9, "temperature": 1.7}]
    params = [
        SamplingParams(seed=rng.randrange(2**63), max_tokens=12, ignore_eos=True, **rng.choice(choices))  # type: ignore[arg-type]
        for _ in prompts[:20]
    ]
    alone_llm = LLM(model=folder, dtype="float32")
    alone = [
        alone_llm.generate({"prompt_token_ids": prompt}, request_params)[0].outputs[0].token_ids
        for prompt, request_params in zip(prompts, params, strict=False)
    ]
    for _ in range(2):
        llm = random_llm(rng, folder, max_tokens_of_one=300 + 12, block_sizes=(4, 16, 32), **options)
        foretell(llm, rng, {(tuple(prompt), 0): tokens for prompt, tokens in zip(prompts, alone, strict=False)})
        arrivals = [
            Arrival(prompt, request_params, at_step=rng.randint(0, 30))
            for prompt, request_params in zip(prompts, params, strict=False)
        ]
        run_schedule(llm, arrivals)
        assert [arrival.output.token_ids for arrival in arrivals] == alone


def test_outputs_of_one_prompt_share_it_and_are_what_they_are_alone(case: Case) -> None:
    folder, prompts, _, options = case
    rng = random.Random(9)
    params = [SamplingParams(n=rng.randint(2, 5), seed=i, max_tokens=9, ignore_eos=True) for i in range(12)]
    shared = [prompt for prompt in prompts if len(prompt) > 1][:12]
    expected = LLM(model=folder, dtype="float32", enable_prefix_caching=False).generate(shared, params)
    for caching in (False, True):
        llm = LLM(
            model=folder, dtype="float32", block_size=4, num_kv_blocks=100, max_num_batched_tokens=70, swap_space=1e-3,
            enable_prefix_caching=caching, **options,
        )  # fmt: skip
        answers = zip(shared, expected, strict=True)
        foretell(llm, rng, {(tuple(p), o.index): o.token_ids for p, want in answers for o in want.outputs})
        arrivals = [
            Arrival(prompt, request_params, at_step=i)
            for i, (prompt, request_params) in enumerate(zip(shared, params, strict=True))
        ]
        run_schedule(llm, arrivals)
        for arrival, want in zip(arrivals, expected, strict=True):
            assert [o.token_ids for o in arrival.outputs] == [o.token_ids for o in want.outputs]
            assert len({tuple(o.token_ids) for o in arrival.outputs}) > 1
        cached = [o.metrics.num_cached_tokens for arrival in arrivals for o in arrival.outputs if o.metrics]
        assert sum(count > 0 for count in cached) > len(cached) // 3, "most of the others share their parent's prompt"


def test_sharded_files_load_like_a_single_one(tmp_path: Path) -> None:
    model = save_model("llama-mha", tmp_path, shards=3)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    llm = LLM(model=str(tmp_path), dtype="float32")
    prompt = list(range(20, 60))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    assert llm.generate({"prompt_token_ids": prompt}, params)[0].outputs[0].token_ids == greedy(model, prompt, 8)
