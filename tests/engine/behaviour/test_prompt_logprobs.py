"""Logprobs of prompts equal transformers' log-softmax under any schedule, and are computed in pieces."""

import itertools
import random

import pytest
import torch
from random_schedule import Arrival, random_llm, run_schedule
from tiny_models import VOCAB_SIZE, save_model
from transformers import PreTrainedModel

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.core.outputs import Logprob, PromptLogprobs, TokenLogprobs
from splitfuse.engine.execution.sampling import prompt_logprobs

pytestmark = pytest.mark.sampled(6)

NUM_NEW = 12


# Unusual ways from states to logits, too: a soft cap, a projection and no last norm.
@pytest.fixture(scope="module", params=["qwen3", "gemma2", "opt-post-norm"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("scored")
    return str(folder), save_model(request.param, folder)


def expected(model: PreTrainedModel, prompt: list[int]) -> torch.Tensor:
    """Return transformers' logprobs of each token after its predecessors, [len(prompt) - 1, vocab]."""
    with torch.inference_mode():
        return model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)


def check(scores: list[TokenLogprobs | None], prompt: list[int], theirs: torch.Tensor, num_top: int) -> None:
    assert scores[0] is None
    assert len(scores) == len(prompt)
    for position, (score, token, logprobs) in enumerate(zip(scores[1:], prompt[1:], theirs, strict=True), 1):
        assert score is not None
        assert score.token_id == token
        assert score.logprob == pytest.approx(float(logprobs[token]), abs=2e-4), position
        assert score.rank is not None
        # The rank is right, except for neighbours that rounding may swap.
        assert int((logprobs > logprobs[token] + 1e-3).sum()) < score.rank
        assert score.rank <= int((logprobs > logprobs[token] - 1e-3).sum()) + 1
        assert len(score.top) == num_top
        ids = [token_id for token_id, _ in score.top]
        torch.testing.assert_close(torch.tensor([lp for _, lp in score.top]), logprobs[ids], atol=2e-4, rtol=0)
        torch.testing.assert_close(logprobs[ids], logprobs.topk(num_top).values, atol=2e-4, rtol=0)


@pytest.mark.parametrize("seed", range(2))
def test_prompt_logprobs_equal_transformers_under_random_schedules(
    model: tuple[str, PreTrainedModel], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, theirs = model
    rng = random.Random(seed)
    monkeypatch.setattr(prompt_logprobs, "_NUM_LOGITS", VOCAB_SIZE * rng.choice([1, 7, 1000]))
    llm = random_llm(rng, folder, max_tokens_of_one=200 + NUM_NEW, block_sizes=(1, 4, 16))
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(120)]
    arrivals = []
    for index in range(30):
        prompt = shared[: rng.randint(1, 120)] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(0, 80))]
        params = SamplingParams(
            temperature=0,
            max_tokens=NUM_NEW,
            ignore_eos=True,
            n=rng.choice([1, 1, 3]),
            prompt_logprobs=rng.choice([None, 0, 1, 5, 20]),
        )
        arrivals.append(Arrival(prompt, params, at_step=rng.randint(0, 40) if index else 0))
    run_schedule(llm, arrivals)
    plain = LLM(folder, dtype="float32")
    for arrival in arrivals:
        wanted = arrival.params.prompt_logprobs
        scores = arrival.prompt_logprobs
        if wanted is None:
            assert scores is None
        else:
            assert scores is not None
            check(list(scores), arrival.prompt, expected(theirs, arrival.prompt), wanted)
        params = SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True)
        alone = plain.generate({"prompt_token_ids": arrival.prompt}, params)[0].outputs[0].token_ids
        assert all(output.token_ids == alone for output in arrival.outputs)


def test_scores_survive_preemption_and_the_cache_that_follows(model: tuple[str, PreTrainedModel]) -> None:
    folder, theirs = model
    rng = random.Random(11)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(60)] for _ in range(12)]
    for swap_space in (0.0, 1e-3):
        llm = LLM(
            folder, dtype="float32", block_size=4, num_kv_blocks=32, max_num_batched_tokens=24, swap_space=swap_space
        )
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, prompt_logprobs=2)
        arrivals = [Arrival(prompt, params, at_step=i) for i, prompt in enumerate(prompts)]
        assert run_schedule(llm, arrivals) > 0, "the test is meant to preempt"
        for arrival in arrivals:
            assert arrival.prompt_logprobs is not None
            check(list(arrival.prompt_logprobs), arrival.prompt, expected(theirs, arrival.prompt), 2)


def test_a_known_prompt_is_computed_again_only_for_who_asks(model: tuple[str, PreTrainedModel]) -> None:
    folder, theirs = model
    llm = LLM(folder, dtype="float32", block_size=4)
    prompt = list(range(20, 60))
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    asking = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, prompt_logprobs=3)
    first, second, third = (
        llm.generate({"prompt_token_ids": prompt}, request_params)[0] for request_params in (params, asking, params)
    )
    assert (first.num_cached_tokens, second.num_cached_tokens, third.num_cached_tokens) == (0, 0, 36)
    assert first.prompt_logprobs is third.prompt_logprobs is None
    assert second.prompt_logprobs is not None
    check(second.prompt_logprobs, prompt, expected(theirs, prompt), 3)


def test_no_more_logits_at_once_than_a_piece(
    model: tuple[str, PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = model
    llm = LLM(folder, dtype="float32", max_num_batched_tokens=512)
    inner, sizes = llm.engine.pipeline._runner._runner.model.logits, []  # type: ignore[attr-defined]
    monkeypatch.setattr(
        llm.engine.pipeline._runner._runner.model, "logits", lambda hidden: sizes.append(len(hidden)) or inner(hidden)
    )  # type: ignore[attr-defined]
    monkeypatch.setattr(prompt_logprobs, "_NUM_LOGITS", VOCAB_SIZE * 16)
    prompt = {"prompt_token_ids": [7] * 300}
    llm.generate(prompt, SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert sizes == [1, *[16] * 18, 11]


def test_a_prompt_of_one_token_has_nothing_to_score(model: tuple[str, PreTrainedModel]) -> None:
    output = LLM(model[0], dtype="float32").generate([[5]], SamplingParams(max_tokens=1, prompt_logprobs=2))[0]
    assert output.prompt_logprobs == [None]


def test_scores_that_are_not_finite_fail_the_request(model: tuple[str, PreTrainedModel]) -> None:
    llm = LLM(model[0], dtype="float32", max_num_batched_tokens=8)
    runner = llm.engine.pipeline._runner._runner
    inner = runner.model.logits  # type: ignore[attr-defined]
    calls = itertools.count()
    runner.model.logits = lambda hidden: inner(hidden) * (float("nan") if next(calls) == 3 else 1.0)  # type: ignore[attr-defined]
    arrival = Arrival([9] * 30, SamplingParams(max_tokens=2, prompt_logprobs=0))
    run_schedule(llm, [arrival])
    assert arrival.output.finish_reason == "error"
    assert isinstance(arrival.output.error, Exception)
    assert arrival.prompt_logprobs is None


def test_entries_have_the_shape_of_vllm() -> None:
    scores = PromptLogprobs(2)
    scores.add([7, 8], [-3.0, -0.5], [9, 1], [1, 2, 8, 3], [-0.5, -1.0, -0.5, -2.0])
    assert len(scores) == 3
    assert scores[0] is None
    beyond, best = scores[1], scores[-1]
    assert beyond is not None
    assert best is not None
    assert dict(beyond) == {7: Logprob(-3.0, 9), 1: Logprob(-0.5, 1), 2: Logprob(-1.0, 2)}
    assert dict(best) == {8: Logprob(-0.5, 1), 3: Logprob(-2.0, 2)}
    assert (len(beyond), len(best), best[3].rank, 5 in best) == (3, 2, 2, False)
    assert list(scores)[1:] == scores[1:] == [beyond, best]
    with pytest.raises(IndexError):
        scores[3]
