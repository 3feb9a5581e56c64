"""Structured output under any schedule: preemption, retried steps and a broken neighbour change no token."""

import random
from typing import Any

import pytest
from faulty_drafters import Prophet, speculate
from overlapped_llm import launcher_of, overlapped_llm
from random_schedule import Arrival, random_llm, run_schedule
from random_schemas import random_schema
from simulated_stream import SimulatedStream
from tiny_models import VOCAB_SIZE

from splitfuse.engine import LLM, SamplingParams, StructuredOutputs
from splitfuse.engine.core.batch import Batch, Moves, RowOutput
from splitfuse.engine.errors import ConstraintError
from splitfuse.engine.serving.request_output import CompletionOutput

pytestmark = pytest.mark.sampled(6)


def constrained_arrivals(rng: random.Random, count: int) -> list[Arrival]:
    """Return prompts, most of them with a grammar of their own, some with several outputs."""
    arrivals = []
    for index in range(count):
        outputs: StructuredOutputs | None = rng.choice(
            [
                None,
                StructuredOutputs(regex=f"[a-z]{{{rng.randint(1, 9)},}}"),
                StructuredOutputs(json=random_schema(rng, depth=3)),
                StructuredOutputs(json_object=True),
                StructuredOutputs(choice=[f"choice {n}" for n in range(rng.randint(1, 9))]),
            ]
        )
        params = SamplingParams(
            structured_outputs=outputs,
            seed=index,
            n=rng.choice([1, 1, 1, 3]),
            max_tokens=rng.randint(1, 40),
            temperature=rng.choice([0.0, 1.0, 3.0]),
            ignore_eos=rng.random() < 0.3,
        )
        prompt = [rng.randrange(20, 270) for _ in range(rng.randint(1, 60))]
        arrivals.append(Arrival(prompt, params, at_step=rng.randint(0, 30)))
    return arrivals


def texts(arrivals: list[Arrival]) -> list[list[tuple[list[int], str | None]]]:
    return [[(output.token_ids, output.finish_reason) for output in arrival.outputs] for arrival in arrivals]


def alone(folder: str, arrivals: list[Arrival]) -> list[list[tuple[list[int], str | None]]]:
    llm = LLM(folder, dtype="float32", block_size=16)
    outputs = [llm.generate({"prompt_token_ids": arrival.prompt}, arrival.params)[0].outputs for arrival in arrivals]
    return [[(output.token_ids, output.finish_reason) for output in request_outputs] for request_outputs in outputs]


@pytest.mark.parametrize("seed", range(3))
def test_no_schedule_changes_the_tokens(tiny_folder: str, seed: int) -> None:
    rng = random.Random(seed)
    arrivals = constrained_arrivals(rng, 30)
    expected = alone(tiny_folder, arrivals)
    llm = random_llm(rng, tiny_folder, max_tokens_of_one=100, block_sizes=(4, 16))
    run_schedule(llm, arrivals)
    assert texts(arrivals) == expected, f"{llm.config}"


@pytest.mark.parametrize("swap_space", [0, 1e-2])
def test_a_pool_for_one_preempts_and_changes_nothing(tiny_folder: str, swap_space: float) -> None:
    rng = random.Random(11)
    arrivals = constrained_arrivals(rng, 30)
    expected = alone(tiny_folder, arrivals)
    llm = LLM(
        tiny_folder,
        dtype="float32",
        block_size=4,
        num_kv_blocks=25,
        swap_space=swap_space,
        preemption_mode="swap" if swap_space else "recompute",
    )
    assert run_schedule(llm, arrivals) > 0, "the test is meant to preempt"
    assert texts(arrivals) == expected


@pytest.mark.parametrize("seed", range(4))
def test_masks_that_are_made_while_the_device_computes_change_no_token(tiny_folder: str, seed: int) -> None:
    rng = random.Random(f"overlapped{seed}")
    arrivals = constrained_arrivals(rng, 30)
    expected = alone(tiny_folder, arrivals)
    stream = SimulatedStream(rng, laziness=rng.choice([0.1, 0.9, 1.0]))
    settings: dict[str, Any] = {"num_kv_blocks": 60, "preemption_mode": "swap", "swap_space": 1e-2} if seed % 2 else {}
    llm = overlapped_llm(tiny_folder, stream, dtype="float32", block_size=4, max_num_seqs=9, **settings)
    run_schedule(llm, arrivals)
    assert texts(arrivals) == expected
    assert launcher_of(llm).buffers._num_acquired > 50


class Stumbling:
    """Runner that computes and samples a whole step and then often fails, so that the step is retried by halves."""

    def __init__(self, llm: LLM) -> None:
        self._runner = llm.engine.pipeline._runner._runner
        self._rng = random.Random(0)
        self.num_failures = 0
        llm.engine.pipeline._runner._runner = self

    def move(self, moves: Moves) -> None:
        self._runner.move(moves)

    def run(self, batch: Batch) -> list[RowOutput]:
        results = self._runner.run(batch)
        if len(batch.rows) > 1 and self._rng.random() < 0.5:
            self.num_failures += 1
            raise RuntimeError("after sampling")
        return results


def test_a_step_tried_again_advances_no_grammar_twice(tiny_folder: str) -> None:
    arrivals = constrained_arrivals(random.Random(12), 25)
    expected = alone(tiny_folder, arrivals)
    llm = LLM(tiny_folder, dtype="float32", max_num_seqs=12)
    runner = Stumbling(llm)
    run_schedule(llm, arrivals)
    assert runner.num_failures > 20
    assert texts(arrivals) == expected


@pytest.mark.parametrize("seed", range(3))
def test_drafts_are_checked_against_the_grammar(tiny_folder: str, seed: int) -> None:
    """Draft mostly right tokens, some allowed but wrong, some not allowed at all; steps are retried, too."""
    rng = random.Random(f"drafts{seed}")
    arrivals = constrained_arrivals(rng, 30)
    expected = alone(tiny_folder, arrivals)
    llm = LLM(tiny_folder, dtype="float32", max_num_seqs=12, block_size=4, enable_prefix_caching=seed == 0)
    answers = {
        (tuple(arrival.prompt), index): tokens
        for arrival, outputs in zip(arrivals, expected, strict=True)
        for index, (tokens, _) in enumerate(outputs)
    }
    drafter = Prophet(answers, rng=rng, vocab_size=VOCAB_SIZE)
    speculation = speculate(llm, drafter, max_drafts=rng.randint(1, 9))
    if seed:
        Stumbling(llm)
    run_schedule(llm, arrivals)
    assert texts(arrivals) == expected
    assert speculation.num_draft_tokens > speculation.num_accepted_tokens > 100


def test_a_draft_model_leaves_grammars_alone(tiny_folder: str) -> None:
    arrivals = constrained_arrivals(random.Random(5), 12)
    expected = alone(tiny_folder, arrivals)
    config = {"model": tiny_folder, "num_speculative_tokens": 4, "adaptive": False}
    llm = LLM(tiny_folder, dtype="float32", speculative_config=config)
    run_schedule(llm, arrivals)
    assert texts(arrivals) == expected


def test_a_grammar_that_breaks_costs_its_own_request_alone(tiny_folder: str) -> None:
    """Run two rows of one step, one of which ends with a token that its grammar never allowed."""
    llm = LLM(tiny_folder, dtype="float32")
    params = SamplingParams(structured_outputs=StructuredOutputs(regex="[0-9]{12}"), max_tokens=30, seed=3)
    expected = llm.generate("abc", params)[0].outputs[0].text
    made = {}
    for name in ("good", "bad"):
        made[name] = llm.engine._input_processor.requests(
            name, llm.run(llm.engine.prompts.tokenize("abc", params, is_new=False)), now=0.0
        )
        llm.engine.core.add(made[name])
    llm.engine.pipeline.step()
    made["bad"][0].token_ids[-1] = 98
    outputs = {name: CompletionOutput(0) for name in made}
    while llm.engine.core.num_unfinished:
        for delta in llm.engine.pipeline.step().deltas:
            outputs[delta.request_id].add(delta)
    assert outputs["bad"].finish_reason == "error"
    assert isinstance(outputs["bad"].error, ConstraintError)
    assert "structured_outputs.regex cannot be met any further" in str(outputs["bad"].error)
    assert outputs["good"].finish_reason == "stop"
    assert expected.endswith(outputs["good"].text)
