"""Engines that decide a step while the one before runs give the same outputs as the others."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import Collector, collect, running_engine
from random_schedule import Arrival, run_schedule
from tiny_models import VOCAB_SIZE

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.runner.async_runner import AsyncRunner
from splitfuse.engine.sampling.sampler import sample_token_ids
from splitfuse.engine.simulation.replay import replay

PROMPTS = [[random.Random(i).randrange(20, VOCAB_SIZE) for _ in range(3 + 11 * i % 60)] for i in range(14)]
SAMPLED_ON_DEVICE: list[dict[str, Any]] = [
    {"temperature": 0},
    {},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.9, "temperature": 1.5},
    {"stop": ["a"]},
    {"n": 3},
]
SAMPLED_ON_HOST: list[dict[str, Any]] = [{"repetition_penalty": 1.3}, {"logprobs": 2}, {"min_tokens": 5}]
SAMPLED_ON_HOST += [{"structured_outputs": {"regex": "[a-f]{2,9}"}}, {"prompt_logprobs": 1}, {"logit_bias": {30: 9.0}}]


def params_of(prompts: list[list[int]], seed: int) -> list[SamplingParams]:
    rng = random.Random(seed)
    fields = [rng.choice(SAMPLED_ON_DEVICE + SAMPLED_ON_HOST * (seed % 3 == 1)) for _ in prompts]
    return [SamplingParams(seed=i, max_tokens=rng.randint(5, 18), **each) for i, each in enumerate(fields)]


def results(outputs: list[Any]) -> list[Any]:
    return [[(o.token_ids, o.text, o.finish_reason, o.stop_reason) for o in output.outputs] for output in outputs]


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 9}, {"block_size": 4, "num_kv_blocks": 24}])
@pytest.mark.parametrize("seed", range(3))
def test_llm(tiny_folder: str, settings: dict[str, Any], seed: int) -> None:
    params = params_of(PROMPTS, seed)
    expected = results(LLM(model=tiny_folder, dtype="float32", device="cpu").generate(PROMPTS, params))
    llm = LLM(model=tiny_folder, dtype="float32", device="cpu", async_scheduling=True, **settings)
    assert results(llm.generate(PROMPTS, params)) == expected
    assert llm.core.blocks.device.num_used_blocks == 0
    assert not llm.pipeline.is_busy


async def test_async_engine(tiny_folder: str) -> None:
    params = params_of(PROMPTS, 5)
    plain = LLM(model=tiny_folder, dtype="float32", device="cpu")
    expected = [[o.token_ids for o in output.outputs] for output in plain.generate(PROMPTS, params)]
    async with running_engine(tiny_folder, async_scheduling=True) as engine:
        outputs = await asyncio.gather(*(collect(engine, *each) for each in zip(PROMPTS, params, strict=True)))
        assert [[o.token_ids for o in each] for each in outputs] == expected
        assert engine.stats()["num_used_blocks"] == 0
        sink = Collector()
        handle = await engine.submit(PROMPTS[0], SamplingParams(max_tokens=400, ignore_eos=True), sink)
        await sink.until(3)
        engine.abort(handle.request_id)
        await sink.ended.wait()
        assert sink.deltas[-1].finish_reason == "abort"
        await engine.drain(10)
        assert engine.stats()["num_used_blocks"] == 0


def test_a_pass_that_fails_costs_only_its_culprit(tiny_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    expected = results(LLM(model=tiny_folder, dtype="float32", device="cpu").generate(PROMPTS, params))
    llm = LLM(model=tiny_folder, dtype="float32", device="cpu", async_scheduling=True)
    right, calls = AsyncRunner._compute, iter(range(1000))

    def fails_often(self: AsyncRunner, *args: Any) -> None:
        if next(calls) % 3 == 1:
            raise RuntimeError("out of memory")
        right(self, *args)

    monkeypatch.setattr(AsyncRunner, "_compute", fails_often)
    assert results(llm.generate(PROMPTS, params)) == expected


def test_what_is_not_finite_fails_alone(tiny_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(logits: torch.Tensor, fields: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        logits[1:] = float("nan")
        return sample_token_ids(logits, fields)

    monkeypatch.setattr("splitfuse.engine.runner.async_runner.sample_token_ids", spoilt)
    llm = LLM(model=tiny_folder, dtype="float32", device="cpu", async_scheduling=True)
    arrivals = [Arrival(prompt, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)) for prompt in PROMPTS[:2]]
    run_schedule(llm, arrivals)
    assert sorted(str(arrival.output.finish_reason) for arrival in arrivals) == ["error", "length"]


@pytest.mark.parametrize("other", [{}, {"speculative_config": {"method": "ngram"}}, {"speculative_model": "ngram"}])
def test_it_goes_with_recording_and_speculation(tiny_folder: str, tmp_path: Path, other: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    expected = results(LLM(model=tiny_folder, dtype="float32", device="cpu").generate(PROMPTS, params))
    path = tmp_path / "recording.jsonl"
    llm = LLM(model=tiny_folder, dtype="float32", device="cpu", async_scheduling=True, record=str(path), **other)
    assert results(llm.generate(PROMPTS, params)) == expected
    assert (llm.core.speculation is not None) == bool(other)
    llm.core.scheduler._listener._stream.flush()  # type: ignore[union-attr]
    replayed = replay(path)
    assert replayed.difference is None, replayed.difference
    assert replayed.num_steps > 20
