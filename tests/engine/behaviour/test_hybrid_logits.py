"""Logits of hybrid models have equal bits for any cut of a prompt, beside any neighbours, behind any checkpoint."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty_drafters import Prophet, speculate
from logits import all_logits
from random_schedule import Arrival, run_schedule
from tiny_models import HYBRIDS, VOCAB_SIZE, save_model
from torch import Tensor

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.execution.runner.stages import SamplingPass
from splitfuse.engine.execution.runner.step import Step
from splitfuse.kernels.cpu import build

pytestmark = [
    pytest.mark.skipif(build.library() is None, reason="needs a C++ compiler for the native CPU library"),
    pytest.mark.sampled(18),
]

PROMPT_LEN, NUM_NEW = 900, 12
PRECISIONS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int4": {"dtype": "bfloat16", "quantization": "int4", "quantization_activations": "int8"},
}


@pytest.fixture(scope="module", params=sorted(HYBRIDS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp(request.param)
    save_model(request.param, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
    return folder


def cuts(rng: random.Random, length: int) -> Iterator[list[int]]:
    """Yield lists of chunks: all of one length, and random ones."""
    for size in (1, 2, 3, 7, 16, 17, 64, 255, 256, 257, 511, 899):
        yield [size] * (length // size) + ([length % size] if length % size else [])
    for longest in (4, 40, 400):
        chunks: list[int] = []
        while (left := length - sum(chunks)) > 0:
            chunks.append(min(left, rng.randint(1, longest)))
        yield chunks


@pytest.mark.parametrize("precision", PRECISIONS)
def test_any_cut_of_a_prompt_gives_equal_logits(folder: Path, precision: str) -> None:
    rng = random.Random(5)
    prompt = [rng.randrange(VOCAB_SIZE) for _ in range(PROMPT_LEN)]
    whole = all_logits(folder, prompt, chunks=[PROMPT_LEN], **PRECISIONS[precision])
    for chunks in cuts(rng, PROMPT_LEN):
        assert torch.equal(all_logits(folder, prompt, chunks=chunks, **PRECISIONS[precision]), whole), chunks[:3]


class Logits:
    """Logits of every sampled position, by the tokens before it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[tuple[int, ...], list[Tensor]] = {}
        sample = SamplingPass._sample

        def kept(stage: Any, step: Step) -> None:
            assert step.hidden is not None
            rows = iter(stage._model.logits(step.hidden[: len(step.samples.requests)]))
            for row in step.samples.rows:
                known = row.request.token_ids[: row.end - row.num_drafts]
                for num_drafts in range(row.num_drafts + 1):
                    self.of.setdefault((*known, *row.draft_token_ids[:num_drafts]), []).append(next(rows).clone())
            sample(stage, step)

        monkeypatch.setattr(SamplingPass, "_sample", kept)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_neighbours_checkpoints_and_drafts_change_no_bit(
    folder: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask 900-token prompts alone; then cut, beside others, after hits within them, with right and wrong drafts."""
    rng = random.Random(6)
    start = [rng.randrange(VOCAB_SIZE) for _ in range(PROMPT_LEN)]
    prompts = [start[:kept] + [rng.randrange(VOCAB_SIZE) for _ in range(PROMPT_LEN - kept)] for kept in (900, 700, 333)]
    params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
    settings: dict[str, Any] = {
        "model": str(folder), "device": "cpu", "max_model_len": 1024, **PRECISIONS[precision]
    }  # fmt: skip
    logits = Logits(monkeypatch)
    alone: list[list[int]] = []
    for prompt in prompts:
        with LLM(**settings, enable_prefix_caching=False, max_num_batched_tokens=1024) as llm:
            alone.append(llm.generate({"prompt_token_ids": prompt}, params)[0].outputs[0].token_ids)
    reference = {tokens: found[0] for tokens, found in logits.of.items() if len(tokens) >= PROMPT_LEN}
    assert len(reference) == len(prompts) * NUM_NEW

    logits.of.clear()
    answers = {(tuple(prompt), 0): tokens for prompt, tokens in zip(prompts, alone, strict=True)}
    drafts = {"method": "ngram", "num_speculative_tokens": 7, "adaptive": False}
    num_cached = 0
    for budget in (33, 150, 512):
        llm = LLM(**settings, max_num_batched_tokens=budget, speculative_config=drafts)
        speculate(llm, Prophet(answers, rng=random.Random(budget), vocab_size=VOCAB_SIZE), max_drafts=7, adaptive=False)
        others = [
            Arrival([rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 200))], params, at_step=rng.randint(0, 40))
            for _ in range(8)
        ]
        asked = [Arrival(prompt, params, at_step=20 * i) for i, prompt in enumerate([*prompts, *reversed(prompts)])]
        run_schedule(llm, [*asked, *others])
        num_cached += sum(arrival.output.metrics.num_cached_tokens for arrival in asked if arrival.output.metrics)
    assert num_cached > 5 * 900, "later prompts begin at checkpoints"
    num_compared = 0
    for tokens, expected in reference.items():
        for found in logits.of[tokens]:
            assert torch.equal(found, expected)
            num_compared += 1
    assert num_compared > 3 * len(reference), "each position was computed several times"
