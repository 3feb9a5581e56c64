"""Speculation changes no answer, however it ends and with any drafter; faulty drafters cost time only."""

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from faulty_drafters import Broken, Faulty, Forgetful, Hanging, Prophet, Raising, TooMuch, WrongVocabulary, speculate
from random_schedule import Arrival, run_schedule
from sampled_rows import sample_rows
from tiny_models import VOCAB_SIZE

from splitfuse.engine import LLM, CompletionOutput, SamplingParams
from splitfuse.engine.core.batch import Batch, BatchRow, RowOutput
from splitfuse.engine.core.request import Request

PROMPTS = [[20, 30, 40, 50], [60, 61, 62] * 8, list(range(15, 90))]


def make(folder: str, **settings: Any) -> LLM:
    return LLM(model=folder, dtype="float32", device="cpu", **settings)


def generate(llm: LLM, params: SamplingParams, prompts: list[list[int]] = PROMPTS) -> list[CompletionOutput]:
    return [output for request in llm.generate(prompts, params) for output in request.outputs]


def with_prophet(folder: str, answers: list[CompletionOutput], n: int = 1, **settings: Any) -> LLM:
    """Return an engine whose drafter knows these answers to PROMPTS."""
    llm = make(folder, **settings)
    known = {(tuple(PROMPTS[i // n]), i % n): output.token_ids for i, output in enumerate(answers)}
    speculate(llm, Prophet(known, rng=random.Random(3), vocab_size=VOCAB_SIZE), max_drafts=6)
    return llm


def facts(outputs: list[CompletionOutput]) -> list[tuple[Any, ...]]:
    return [
        (o.token_ids, o.text, o.finish_reason, o.stop_reason, o.metrics.num_output_tokens if o.metrics else None)
        for o in outputs
    ]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
        {"seed": 5, "n": 3},
        {"seed": 6, "repetition_penalty": 0.7, "top_k": 30, "frequency_penalty": 0.5},
        {"seed": 7, "temperature": 1.8, "top_p": 0.9, "min_p": 0.01, "logit_bias": {9: 3.0}},
        {"temperature": 0, "min_tokens": 12, "stop_token_ids": list(range(15, 100))},
        {"seed": 8, "stop_token_ids": list(range(15, 45))},
        {"seed": 9, "bad_words": ["a", "bc"], "allowed_token_ids": list(range(60, 140))},
        {"seed": 10, "logprobs": 3},
    ],
    ids=str,
)
def test_same_answer_whatever_the_parameters(tiny_folder: str, params: dict[str, Any]) -> None:
    asked = SamplingParams(max_tokens=40, **params)
    plain = generate(make(tiny_folder), asked)
    # The drafter's knowledge goes on beyond the answer's end.
    endless = generate(make(tiny_folder), SamplingParams(**{**params, "max_tokens": 80, "stop_token_ids": []}))
    known = [
        _answer if len(_answer.token_ids) >= len(output.token_ids) else output
        for output, _answer in zip(plain, endless, strict=True)
    ]
    llm = with_prophet(tiny_folder, known, asked.n)
    speculated = generate(llm, asked)
    assert facts(speculated) == facts(plain)
    assert llm.engine.core.speculation is not None
    assert llm.engine.core.speculation.num_accepted_tokens > 0
    if asked.logprobs:
        for one, other in zip(plain, speculated, strict=True):
            assert one.logprobs
            assert other.logprobs
            assert [lp.token_id for lp in one.logprobs] == [lp.token_id for lp in other.logprobs]
            values = [[lp.logprob for lp in output.logprobs or ()] for output in (one, other)]
            torch.testing.assert_close(torch.tensor(values[0]), torch.tensor(values[1]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.7, "seed": 3}], ids=str)
def test_what_was_answered_before_takes_few_steps(tiny_folder: str, params: dict[str, Any]) -> None:
    """A turn that repeats: three times as many tokens a step as by n-gram, and no other token."""
    sampling, num_steps = SamplingParams(max_tokens=60, ignore_eos=True, **params), dict[str, list[float]]()
    rng = random.Random(4)
    prompts = [[rng.randrange(15, VOCAB_SIZE) for _ in range(40)] for _ in range(3)]
    expected = [output.token_ids for output in generate(make(tiny_folder), sampling, prompts)]
    for method in ("ngram", "suffix"):
        llm = make(tiny_folder, speculative_config={"method": method, "adaptive": False})
        for _ in range(3):
            for prompt, tokens in zip(prompts, expected, strict=True):
                before = llm.engine.core.speculation.inner.num_accepted_tokens
                assert generate(llm, sampling, [prompt])[0].token_ids == tokens
                num_accepted = llm.engine.core.speculation.inner.num_accepted_tokens - before
                num_steps.setdefault(method, []).append(len(tokens) / (len(tokens) - num_accepted))
        if method == "suffix":
            llm.engine.core.speculation.inner._drafter.check()
    again = {method: sum(found[3:]) for method, found in num_steps.items()}
    assert again["suffix"] > 3 * again["ngram"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_stop_strings_cut_within_a_run(tiny_folder: str, seed: int) -> None:
    rng = random.Random(seed)
    endless = generate(make(tiny_folder), SamplingParams(seed=seed, max_tokens=40, ignore_eos=True))
    parts = [[part for part in output.text[:-4].split("\ufffd") if part] for output in endless]
    stops = [rng.choice(text)[: rng.randint(1, 4)] for text in parts]
    params = SamplingParams(
        seed=seed, max_tokens=30, ignore_eos=True, stop=tuple(stops), min_tokens=rng.choice([0, 9]),
        include_stop_str_in_output=rng.random() < 0.5, logprobs=0,
    )  # fmt: skip
    plain = generate(make(tiny_folder), params)
    llm = with_prophet(tiny_folder, endless)
    speculated = generate(llm, params)
    assert facts(speculated) == facts(plain)
    assert any(output.finish_reason == "stop" for output in plain)
    assert [len(output.logprobs or ()) for output in speculated] == [len(output.token_ids) for output in plain]


def test_same_answer_from_a_pool_that_is_too_small(tiny_folder: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    plain = generate(make(tiny_folder), params)
    for num_blocks in (29, 34, 40, 60):
        llm = with_prophet(tiny_folder, plain, block_size=4, num_kv_blocks=num_blocks, enable_prefix_caching=False)
        arrivals = [Arrival(prompt, params) for prompt in PROMPTS]
        assert run_schedule(llm, arrivals) > 0 or num_blocks == 60
        assert [arrival.output.token_ids for arrival in arrivals] == [output.token_ids for output in plain]


def test_accepted_tokens_come_in_fewer_steps(tiny_folder: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=41, ignore_eos=True)
    llm = make(tiny_folder)
    answer = generate(llm, params, PROMPTS[:1])
    known = {(tuple(PROMPTS[0]), 0): answer[0].token_ids}

    class Perfect(Faulty):
        def tokens_of(self, request: Request, count: int) -> list[int]:
            return known[tuple(PROMPTS[0]), 0][request.num_output_tokens :][:count]

    speculation = speculate(llm, Perfect(VOCAB_SIZE), max_drafts=4)
    llm.engine.core.add(
        llm.engine._input_processor.requests(
            "r", llm.run(llm.engine.prompts.tokenize(PROMPTS[0], params, is_new=False)), now=0.0
        )
    )
    steps = [llm.engine.pipeline.step() for _ in range(9)]
    assert not llm.engine.core.num_unfinished
    assert [len(step.deltas[0].token_ids) for step in steps] == [1] + 8 * [5]
    assert (speculation.num_drafts, speculation.num_draft_tokens) == (8, 32)
    assert speculation.num_accepted_tokens_per_pos == [8, 8, 8, 8]
    stats = [step.stats for step in steps if step.stats]
    assert sum(stat.num_output_tokens for stat in stats) == 41
    assert [stat.num_decode_tokens for stat in stats] == [0] + 8 * [5]


FAULTY: list[Callable[[int], Faulty]] = [Faulty, WrongVocabulary, TooMuch, Raising, Broken, Forgetful]


@pytest.mark.parametrize("drafter_class", FAULTY, ids=lambda drafter: drafter.__name__)
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_faulty_drafter_costs_no_token(
    tiny_folder: str, drafter_class: Callable[[int], Faulty], adaptive: bool
) -> None:
    params = SamplingParams(seed=1, max_tokens=30, ignore_eos=True)
    plain = generate(make(tiny_folder), params)
    llm = make(tiny_folder)
    drafter = drafter_class(VOCAB_SIZE)
    speculate(llm, drafter, adaptive=adaptive)
    assert facts(generate(llm, params)) == facts(plain)
    assert drafter.num_calls > 0


def test_a_drafter_that_hangs_is_left_alone(tiny_folder: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
    prompts = [[20], [30], [40]]
    llm = make(tiny_folder)
    drafter = Hanging(VOCAB_SIZE)
    speculate(llm, drafter, adaptive=True, clock=time.perf_counter)
    start = time.monotonic()
    speculated = generate(llm, params, prompts)
    assert drafter.num_calls <= 2, "the first call may be slow, a second empties the account"
    assert time.monotonic() - start < 120, "300 calls of 1 s"
    assert facts(speculated) == facts(generate(make(tiny_folder), params, prompts))


class Waiting(Forgetful):
    """Drafter that waits for 50 ms in every call, as if others had the processors."""

    def draft(self, wanted: Mapping[Request, int]) -> dict[Request, list[int]]:
        threading.Event().wait(0.05)
        return super().draft(wanted)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_a_wait_for_a_processor_is_not_charged(tiny_folder: str, method: str) -> None:
    llm = make(tiny_folder, speculative_config={"method": method, "adaptive": False})
    speculation: Any = llm.engine.core.speculation.inner
    speculation._drafter = drafter = Waiting(VOCAB_SIZE)
    generate(llm, SamplingParams(max_tokens=10, temperature=0, ignore_eos=True), PROMPTS[:1])
    assert drafter.num_calls >= 8
    assert speculation.draft_s < 0.01 * drafter.num_calls


def request(tokens: list[int]) -> Request:
    greedy = SamplingParams(temperature=0)
    return Request(request_id="r", prompt_token_ids=tokens, params=greedy, max_num_tokens=100, seed=0)


def logits_for(*tokens: int) -> torch.Tensor:
    logits = torch.zeros(len(tokens), 50)
    for row, token in enumerate(tokens):
        logits[row, token] = 9.0
    return logits


def test_right_drafts_are_kept_and_the_first_wrong_one_is_replaced() -> None:
    row = BatchRow(request([1, 2, 3]), 2, 4, needs_sampling=True, num_drafts=3, draft_token_ids=(10, 11, 12))
    (result,) = sample_rows(logits_for(10, 11, 30, 31), [row])
    assert result == RowOutput((10, 11, 30), num_drafts=3)
    (result,) = sample_rows(logits_for(10, 11, 12, 31), [row])
    assert result.token_ids == (10, 11, 12, 31)


def test_logits_after_a_wrong_draft_may_be_anything() -> None:
    row = BatchRow(request([1, 2, 3]), 2, 3, needs_sampling=True, num_drafts=2, draft_token_ids=(10, 11))
    logits = logits_for(10, 30, 31)
    logits[2] = torch.nan
    assert sample_rows(logits.clone(), [row]) == [RowOutput((10, 30), num_drafts=2)]
    logits[1] = torch.nan
    assert sample_rows(logits.clone(), [row]) == [RowOutput((10,), num_drafts=2)], "the next step will fail"
    logits[0] = torch.nan
    assert sample_rows(logits, [row])[0].failure is not None


def test_only_the_row_at_fault_fails(tiny_folder: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    plain = generate(make(tiny_folder), params)
    llm = with_prophet(tiny_folder, plain)
    run = llm.engine.pipeline._runner._runner.run

    def run_unless_it_is_the_second(batch: Batch) -> Any:
        if any(row.request.request_id == "1" and row.request.num_output_tokens > 5 for row in batch.rows):
            raise RuntimeError("boom")
        return run(batch)

    llm.engine.pipeline._runner._runner.run = run_unless_it_is_the_second  # type: ignore[method-assign]
    outputs = [CompletionOutput(0) for _ in PROMPTS]
    for i, prompt in enumerate(PROMPTS):
        llm.engine.core.add(
            llm.engine._input_processor.requests(
                str(i), llm.run(llm.engine.prompts.tokenize(prompt, params, is_new=False)), now=0.0
            )
        )
    while llm.engine.core.num_unfinished:
        for delta in llm.engine.pipeline.step().deltas:
            outputs[int(delta.request_id)].add(delta)
    assert outputs[1].finish_reason == "error"
    assert [outputs[0].token_ids, outputs[2].token_ids] == [plain[0].token_ids, plain[2].token_ids]
