"""Answers of a model on some ranks, to the bit."""

import random
from pathlib import Path
from typing import Any

from tiny_models import VOCAB_SIZE

from splitfuse.engine import LLM, SamplingParams

RNG = random.Random(3)
PROMPTS = [[RNG.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 5, 33, 80)]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=4, prompt_logprobs=2),
    *(SamplingParams(temperature=0.9, seed=seed, max_tokens=8, ignore_eos=True, logprobs=4) for seed in range(3)),
]
Answer = tuple[list[list[int]], list[Any]]


def answer(path: Path | str, size: int = 1, slices: int | None = None, **options: Any) -> Answer:
    """Return token ids, and all logprobs to the bit."""
    settings = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 60, **options}
    with LLM(str(path), tensor_parallel_size=size, tensor_parallel_slices=slices, **settings) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
    logprobs = [[*(output.prompt_logprobs or ()), *(output.outputs[0].logprobs or ())] for output in outputs]
    return [output.outputs[0].token_ids for output in outputs], logprobs
