"""Speculation changes no answer, however it ends and with any drafter; faulty drafters cost time only."""

import io
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty_drafters import Broken, Faulty, Forgetful, Hanging, Prophet, Raising, TooMuch, WrongVocabulary, speculate
from random_schedule import Arrival, run_schedule
from sampled_rows import sample_rows
from tiny_models import VOCAB_SIZE

from splitfuse.engine import LLM, CompletionOutput, SamplingParams
from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.batch import NO_OUTPUT, Batch, BatchRow, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.extras.simulation.recording import Recorder
from splitfuse.engine.extras.simulation.replay import replay

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


@pytest.mark.parametrize("seed", range(8))
def test_stop_strings_cut_within_a_run(tiny_folder: str, seed: int) -> None:
    rng = random.Random(seed)
    endless = generate(make(tiny_folder), SamplingParams(seed=seed, max_tokens=40, ignore_eos=True))
    parts = [[part for part in output.text[:-4].split("\ufffd") if part] for output in endless]
    stops = [rng.choice(text)[: rng.randint(1, 4)] for text in parts]
    params = SamplingParams(
        seed=seed,
        max_tokens=30,
        ignore_eos=True,
        stop=tuple(stops),
        min_tokens=rng.choice([0, 9]),
        include_stop_str_in_output=rng.random() < 0.5,
        logprobs=0,
    )
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
    speculate(llm, drafter, adaptive=True)
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


def test_random_drafts_are_given_up(tiny_folder: str) -> None:
    llm = make(tiny_folder)
    drafter = Faulty(VOCAB_SIZE)
    speculation = speculate(llm, drafter, adaptive=True)
    generate(llm, SamplingParams(temperature=0, max_tokens=400, ignore_eos=True), [[20], [30]])
    assert drafter.num_calls < 60, "of 400 steps"
    assert speculation.num_draft_tokens < 120


def request(tokens: list[int], *, most: int = 100, stop: frozenset[int] = frozenset()) -> Request:
    return Request(
        request_id="r",
        prompt_token_ids=tokens,
        params=SamplingParams(temperature=0),
        max_num_tokens=most,
        seed=0,
        stop_token_ids=stop,
    )


def decoding(scheduler: Scheduler, *requests: Request) -> None:
    """Run fresh requests through their prompts and a first token, 7."""
    for sequence in requests:
        scheduler.add(sequence)
    batch = scheduler.schedule(0.0)
    assert batch is not None
    scheduler.update(batch, [RowOutput((7,)) for _ in batch.rows], 0.0)


def scheduler_of(num_blocks: int = 100, **settings: Any) -> Scheduler:
    config = ResolvedConfig.of(
        EngineConfig(**{"block_size": 4, "enable_prefix_caching": False, **settings}), device="cpu"
    )
    caching = config.enable_prefix_caching
    return Scheduler(config, BlockManager(CacheSpec(num_blocks, 4), prefix_caching=caching))


def test_drafts_take_what_the_budget_leaves() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=12)
    first, second, prompt = request([1] * 3), request([1] * 3), request([1] * 5)
    decoding(scheduler, first, second)
    scheduler.add(prompt)
    batch = scheduler.schedule(1.0, drafts={first: 4, second: 4})
    assert batch is not None
    assert [(row.num_tokens, row.num_drafts) for row in batch.rows] == [(2, 1), (5, 4), (5, 0)] or {
        row.request: row.num_drafts for row in batch.rows
    } == {first: 4, second: 1, prompt: 0}
    assert batch.num_tokens == 12


def test_drafts_end_before_the_last_token() -> None:
    scheduler = scheduler_of()
    one = request([1] * 3, most=7)
    decoding(scheduler, one)
    batch = scheduler.schedule(1.0, drafts={one: 10})
    assert batch is not None
    assert batch.rows[0].num_drafts == 2, "4 tokens are known, 2 drafts and what follows them make 7"


def test_blocks_of_wrong_drafts_are_given_back() -> None:
    scheduler = scheduler_of()
    one = request([1] * 3)
    decoding(scheduler, one)
    batch = scheduler.schedule(1.0, drafts={one: 10})
    assert batch is not None
    assert batch.rows[0].num_drafts == 10
    assert len(one.block_table) == 4  # blocks of 4 tokens, for 4 known tokens and 10 drafts
    scheduler.update(batch, [RowOutput((8, 9), num_drafts=10)], 1.0)
    scheduler.check()
    assert one.token_ids == [1, 1, 1, 7, 8, 9]
    assert one.num_computed_tokens == 5
    assert len(one.block_table) == 2


def test_the_cache_learns_no_wrong_drafts() -> None:
    scheduler = scheduler_of(enable_prefix_caching=True)
    one = request([1] * 3)
    decoding(scheduler, one)
    batch = scheduler.schedule(1.0, drafts={one: 12})
    assert batch is not None
    scheduler.update(batch, [RowOutput(tuple(range(20, 26)), num_drafts=12)], 1.0)
    scheduler.finish(one, reason="abort", now=1.0)
    again = request([1, 1, 1, 7, *range(20, 26), 26, 27, 28])
    scheduler.add(again)
    batch = scheduler.schedule(2.0)
    assert batch is not None
    assert again.num_cached_tokens == 8, "10 tokens were verified, that is two full blocks"


def test_a_stop_token_within_a_run_ends_it_there() -> None:
    scheduler = scheduler_of()
    one = request([1] * 3, stop=frozenset({5}))
    decoding(scheduler, one)
    batch = scheduler.schedule(1.0, drafts={one: 4})
    assert batch is not None
    (progress,) = scheduler.update(batch, [RowOutput((8, 5, 9, 9), num_drafts=4)], 1.0)
    assert progress.output.token_ids == (8, 5)
    assert one.token_ids == [1, 1, 1, 7, 8, 5]
    assert (one.finish_reason, len(one.block_table)) == ("stop", 0)


def test_drafts_preempt_no_request() -> None:
    scheduler = scheduler_of(num_blocks=4)
    one, other = request([1] * 7, most=16), request([1] * 7, most=16)
    decoding(scheduler, one, other)  # 8 tokens each, two blocks
    batch = scheduler.schedule(1.0, drafts={one: 5, other: 5})
    assert batch is not None
    assert [row.num_drafts for row in batch.rows] == [0, 0]


def test_an_abort_in_flight_ends_a_row_with_drafts() -> None:
    scheduler = scheduler_of()
    one = request([1] * 3)
    decoding(scheduler, one)
    batch = scheduler.schedule(1.0, drafts={one: 4})
    assert batch is not None
    assert scheduler.finish(one, reason="abort", now=1.0)
    assert one.block_table, "the step in flight uses them"
    assert not scheduler.update(batch, [RowOutput((8, 9), num_drafts=4)], 1.0)
    assert (one.finish_reason, len(one.block_table), one.num_output_tokens) == ("abort", 0, 1)


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


@pytest.mark.parametrize("caching", [False, True])
def test_a_recording_with_drafts_is_replayed_alike(tmp_path: Path, caching: bool) -> None:
    rng = random.Random(caching)
    stream = io.StringIO()
    config = ResolvedConfig.of(
        EngineConfig(block_size=4, enable_prefix_caching=caching, max_num_batched_tokens=30), device="cpu"
    )
    cache = CacheSpec(40, 4)
    recorder = Recorder(stream, config, cache)
    scheduler = Scheduler(config, BlockManager(cache, prefix_caching=caching), listener=recorder)
    num_runs = 0
    for step in range(2000):
        now = float(step)
        if step < 60 and rng.random() < 0.3:
            prompt = [rng.choice([3, 4]) for _ in range(rng.randint(1, 40))]
            scheduler.add(request(prompt, most=len(prompt) + rng.randint(1, 60), stop=frozenset({5})))
        drafts = {r: rng.randint(1, 6) for r in scheduler.running if r.num_uncomputed_tokens == 1}
        batch = scheduler.schedule(now, drafts=drafts)
        if batch is None:
            if step > 60:
                break
            continue
        if rng.random() < 0.05:
            scheduler.finish(rng.choice(batch.rows).request, reason="abort", now=now)
        outputs: list[RowOutput] = []
        for row in batch.rows:
            accepted = [rng.choice([3, 4, 3, 4, 3, 4, 5]) for _ in range(rng.randint(0, row.num_drafts))]
            output = RowOutput((*accepted, rng.randint(10, 12)), num_drafts=rng.randint(len(accepted), row.num_drafts))
            outputs.append(output if row.needs_sampling else NO_OUTPUT)
            num_runs += row.num_drafts > 0
        scheduler.update(batch, outputs, now + 0.5)
        scheduler.check()
    assert not scheduler.has_work
    assert num_runs > 50
    path = tmp_path / "recording.jsonl"
    path.write_text(stream.getvalue())
    replayed = replay(path)
    assert replayed.difference is None
    assert replayed.num_steps > 50
