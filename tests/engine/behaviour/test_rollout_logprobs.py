"""Logprobs of sampled tokens are, to the bit, those of the same tokens scored later as a prompt: training needs it."""

import os
import random
from pathlib import Path

import pytest
import torch

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.config.named_models import DEMO_FOLDER

NUM_PROMPTS = 50 if os.environ.get("SPLITFUSE_TEST_ALL") else 8
NUM_NEW = 20
# Both attention kernels of a CPU add up in the order of this file, where it exists.
HAS_ONE_ORDER = (Path(__file__).parents[3] / "kernels" / "cpu" / "csrc" / "attention.h").exists()


@pytest.mark.skipif(not HAS_ONE_ORDER, reason="the kernels of decodes and of prompts have different orders of sums")
def test_sampled_logprobs_equal_prompt_logprobs_under_load() -> None:
    rng = random.Random(1)
    prompts = [[rng.randrange(20, 2000) for _ in range(rng.randint(1, 40))] for _ in range(NUM_PROMPTS)]
    params = [
        SamplingParams(seed=seed, max_tokens=NUM_NEW, ignore_eos=True, logprobs=seed % 3) for seed in range(NUM_PROMPTS)
    ]
    settings = {"dtype": "float32", "device": "cpu", "num_kv_blocks": 64}
    with LLM(str(DEMO_FOLDER), max_num_seqs=8, max_num_batched_tokens=48, **settings) as llm:
        rollouts = llm.generate(prompts, params)
        sequences = [output.prompt_token_ids + output.outputs[0].token_ids for output in rollouts]
        scored = llm.generate(sequences, SamplingParams(max_tokens=1, prompt_logprobs=0))
    for rollout, again in zip(rollouts, scored, strict=True):
        assert rollout.outputs[0].logprobs is not None
        assert again.prompt_logprobs is not None
        scores = [score.logprob for score in again.prompt_logprobs[-NUM_NEW:] if score is not None]
        sampled = [item.logprob for item in rollout.outputs[0].logprobs]
        assert torch.equal(torch.tensor(sampled), torch.tensor(scores))


def test_processed_logprobs_are_those_that_the_sampler_used() -> None:
    """Beside a greedy request, whose rows have no temperature and no filters."""
    settings = {"dtype": "float32", "device": "cpu", "num_kv_blocks": 64}
    filtered = SamplingParams(temperature=0.5, top_k=3, seed=1, max_tokens=4, logprobs=20, ignore_eos=True)
    greedy = SamplingParams(temperature=0, max_tokens=4, logprobs=20, ignore_eos=True)
    banned = SamplingParams(temperature=0, max_tokens=4, logprobs=20, logit_bias={17: -100.0}, ignore_eos=True)
    every = [filtered, greedy, banned]
    with LLM(str(DEMO_FOLDER), **settings) as llm:
        raw = [output.outputs[0] for output in llm.generate(["Once"] * 3, every)]
    with LLM(str(DEMO_FOLDER), logprobs_mode="processed_logprobs", **settings) as llm:
        processed = [output.outputs[0] for output in llm.generate(["Once"] * 3, every)]
    assert [output.token_ids for output in raw] == [output.token_ids for output in processed]
    for before, after in zip(raw[0].logprobs or (), processed[0].logprobs or (), strict=True):
        best = torch.tensor([logprob for _, logprob in before.top[:3]])
        expected = (best / 0.5).log_softmax(dim=0)
        torch.testing.assert_close(torch.tensor([logprob for _, logprob in after.top[:3]]), expected)
        assert {logprob for _, logprob in after.top[3:]} == {float("-inf")}
    assert raw[1].logprobs == processed[1].logprobs
    assert 17 in (raw[2].logprobs or [{}])[0]
    assert 17 not in (processed[2].logprobs or [{17: None}])[0]
