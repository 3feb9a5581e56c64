"""Engines that decide a step while the previous one runs give the outputs of other engines."""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import Collector, collect, running_engine
from overlapped_llm import SPECIAL_FIELDS, launcher_of, same_logprobs
from random_schedule import Arrival, run_schedule
from tiny_models import VOCAB_SIZE

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.core.batch import Batch
from splitfuse.engine.core.engine_core import StepOutput
from splitfuse.engine.core.ports import Speculator
from splitfuse.engine.core.sampling_params import FIELD_NAMES
from splitfuse.engine.execution.runner.cuda_graphs import graph_sizes
from splitfuse.engine.execution.runner.forward_pass import ForwardPass
from splitfuse.engine.execution.runner.pending_outputs import PendingOutputs
from splitfuse.engine.execution.sampling.sampler import sample
from splitfuse.engine.extras.simulation.replay import replay

PROMPTS = [[random.Random(i).randrange(20, VOCAB_SIZE) for _ in range(3 + 11 * i % 60)] for i in range(14)]
PLAIN_FIELDS: list[dict[str, Any]] = [
    {"temperature": 0}, {}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05},
    {"top_k": 40, "top_p": 0.9, "temperature": 1.5}, {"stop": ["a"]}, {"n": 3},
]  # fmt: skip


def params_of(prompts: list[list[int]], seed: int) -> list[SamplingParams]:
    rng = random.Random(seed)
    fields = [rng.choice(PLAIN_FIELDS + SPECIAL_FIELDS * (seed % 3 == 1)) for _ in prompts]
    return [SamplingParams(seed=i, max_tokens=rng.randint(5, 18), **values) for i, values in enumerate(fields)]


def results(outputs: list[Any]) -> list[Any]:
    return [[(o.token_ids, o.text, o.finish_reason, o.stop_reason) for o in output.outputs] for output in outputs]


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 9}, {"block_size": 4, "num_kv_blocks": 24}])
@pytest.mark.parametrize("seed", range(3))
def test_llm(tiny_folder: str, settings: dict[str, Any], seed: int) -> None:
    params = params_of(PROMPTS, seed)
    expected = results(LLM(model=tiny_folder, dtype="float32", device="cpu").generate(PROMPTS, params))
    llm = LLM(model=tiny_folder, dtype="float32", device="cpu", async_scheduling=True, **settings)
    assert results(llm.generate(PROMPTS, params)) == expected
    assert llm.engine.core.blocks.device.num_used_blocks == 0
    assert not llm.engine.pipeline.is_busy


class Repeater:
    """Stand-in for CUDA graphs that repeats the captured work."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return work


class Launches:
    """Counter of an LLM's steps, and of its launched steps."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_launched = self.num_steps = 0
        launch, update = launcher_of(llm).launch, llm.engine.core.update

        def launched(batch: Batch) -> PendingOutputs | None:
            pending = launch(batch)
            self.num_launched += pending is not None
            return pending

        def updated(*args: Any) -> StepOutput:
            self.num_steps += 1
            return update(*args)

        monkeypatch.setattr(launcher_of(llm), "launch", launched)
        monkeypatch.setattr(llm.engine.core, "update", updated)


def overlapped(folder: str, *, graphs: bool = False, **settings: Any) -> LLM:
    llm = LLM(folder, dtype="float32", device="cpu", async_scheduling=True, **settings)
    if graphs:
        sizes = graph_sizes(llm.config.max_num_seqs)
        launcher_of(llm).use_graphs(Repeater(), sizes=sizes, hidden_size=64, dtype=torch.float32)
        launcher_of(llm).capture_graphs()
    return llm


@pytest.mark.parametrize("seed", range(2))
def test_no_sampling_field_changes_between_the_paths(
    tiny_folder: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = random.Random(seed).sample([*PLAIN_FIELDS, *SPECIAL_FIELDS], len(PLAIN_FIELDS) + len(SPECIAL_FIELDS))
    prompts = [PROMPTS[(seed + i) % len(PROMPTS)] for i in range(len(fields))]
    params = [SamplingParams(seed=i, max_tokens=12, **values) for i, values in enumerate(fields)]
    plain = LLM(tiny_folder, dtype="float32", device="cpu").generate(prompts, params)
    for graphs in (False, True):
        llm = overlapped(tiny_folder, graphs=graphs)
        launches = Launches(llm, monkeypatch)
        outputs = llm.generate(prompts, params)
        assert results(outputs) == results(plain)
        for ours, theirs in zip(outputs, plain, strict=True):
            assert all(map(same_logprobs, ours.outputs, theirs.outputs))
        assert [output.prompt_logprobs is None for output in outputs] == [p.prompt_logprobs is None for p in params]
        assert launches.num_launched > 5


def test_the_fields_above_are_all_that_there_are() -> None:
    named = {name for fields in (*PLAIN_FIELDS, *SPECIAL_FIELDS) for name in fields}
    elsewhere = {"max_tokens", "seed"}  # set for each request here
    around = {"max_length", "include_stop_str_in_output", "skip_special_tokens", "truncate_prompt_tokens"}
    around |= {"truncation_side"}
    scheduling = {"priority", "timeout_ms", "max_queue_ms", "ttft_ms", "itl_ms", "best_effort"}
    blocks = {"cache_salt"}
    internal = {"reasoning_format"}  # no field of a request
    assert (named - internal) | elsewhere | around | scheduling | blocks == FIELD_NAMES


@pytest.mark.parametrize("kind", ["presence_penalty", "logprobs", "min_tokens", "structured_outputs", "any"])
def test_one_request_of_ten_takes_no_steps_off_the_overlapped_path(
    tiny_folder: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = [values for values in SPECIAL_FIELDS if kind in values or kind == "any"]
    special = {10 * i + 3: fields[(5 * i) % len(fields)] for i in range(3)}
    params = [SamplingParams(seed=i, max_tokens=30, **special.get(i, {})) for i in range(30)]
    llm = overlapped(tiny_folder, graphs=True, max_num_seqs=16)
    launches = Launches(llm, monkeypatch)
    llm.generate([[30 + i] * (1 + i % 7) for i in range(30)], params)
    print(kind, launches.num_launched, "of", launches.num_steps, "steps overlapped")
    assert launches.num_steps > 40
    assert launches.num_launched >= 0.9 * launches.num_steps


def test_a_forced_completion_takes_one_step_off_the_overlapped_path(
    tiny_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = overlapped(tiny_folder)
    launches = Launches(llm, monkeypatch)
    params = SamplingParams(structured_outputs={"json": {"type": "string", "minLength": 30}}, max_tokens=35, seed=1)
    (output,) = llm.generate([[30, 40]], params)
    assert output.outputs[0].finish_reason == "length"
    assert len(json.loads(output.outputs[0].text)) >= 30, "it is complete"
    assert launches.num_steps - launches.num_launched == 1


async def test_async_engine(tiny_folder: str) -> None:
    params = params_of(PROMPTS, 5)
    plain = LLM(model=tiny_folder, dtype="float32", device="cpu")
    expected = [[o.token_ids for o in output.outputs] for output in plain.generate(PROMPTS, params)]
    async with running_engine(tiny_folder, async_scheduling=True) as engine:
        outputs = await asyncio.gather(*(collect(engine, *pair) for pair in zip(PROMPTS, params, strict=True)))
        assert [[o.token_ids for o in request_outputs] for request_outputs in outputs] == expected
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
    right, calls = ForwardPass._compute, iter(range(1000))

    def fails_often(self: ForwardPass, *args: Any) -> None:
        if next(calls) % 3 == 1:
            raise RuntimeError("out of memory")
        right(self, *args)

    monkeypatch.setattr(ForwardPass, "_compute", fails_often)
    assert results(llm.generate(PROMPTS, params)) == expected


def test_what_is_not_finite_fails_alone(tiny_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(logits: torch.Tensor, *args: Any, **more: Any) -> Any:
        logits[1:] = float("nan")
        return sample(logits, *args, **more)

    monkeypatch.setattr("splitfuse.engine.execution.runner.stages.sample", spoilt)
    llm = LLM(model=tiny_folder, dtype="float32", device="cpu", async_scheduling=True)
    arrivals = [Arrival(prompt, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)) for prompt in PROMPTS[:2]]
    run_schedule(llm, arrivals)
    assert sorted(str(arrival.output.finish_reason) for arrival in arrivals) == ["error", "length"]


@pytest.mark.parametrize("other", [{}, {"speculative_config": {"method": "ngram"}}])
def test_it_goes_with_recording_and_speculation(tiny_folder: str, tmp_path: Path, other: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    expected = results(LLM(model=tiny_folder, dtype="float32", device="cpu").generate(PROMPTS, params))
    path = tmp_path / "recording.jsonl"
    llm = LLM(model=tiny_folder, dtype="float32", device="cpu", async_scheduling=True, record=str(path), **other)
    assert results(llm.generate(PROMPTS, params)) == expected
    assert (type(llm.engine.core.speculation.inner) is not Speculator) == bool(other)
    llm.engine.core.scheduler.listeners[0]._stream.flush()  # type: ignore[attr-defined]
    replayed = replay(path)
    assert replayed.difference is None, replayed.difference
    assert replayed.num_steps > 20
