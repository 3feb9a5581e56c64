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
