"""Steps beside streams are a few times as long as without prompts; background requests get a tenth of a step."""

import pytest
from scheduler_bench import request

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.extras.deadlines.step_time import StepTimes

MODEL = CostModel.fixed(0.010, 0.001, 0.0)


def times(model: CostModel = MODEL, **settings: object) -> StepTimes:
    return StepTimes(
        ResolvedConfig.of(EngineConfig(max_num_batched_tokens=512, **settings), device="cpu"),  # type: ignore[arg-type]
        model,
    )


def test_auto_is_five_times_a_step_without_prompts() -> None:
    auto = times(target_itl_ms="auto")
    assert auto.usual_s(100, 0) == 5 * 0.110


@pytest.mark.parametrize(
    ("fixed_s", "token_s"),
    [(0.006, 0.0003), (0.060, 0.0057), (0.340, 0.032), (0.004, 0.000025)],
    ids=["SmolLM2 on 2 cores", "1.5B on 2 cores", "8B on 2 cores", "8B on an H200"],
)
def test_auto_delays_first_tokens_by_a_quarter_at_most(fixed_s: float, token_s: float) -> None:
    auto = times(CostModel.fixed(fixed_s, token_s, 0.0), target_itl_ms="auto")
    for num_streams in (1, 4, 8):
        alone = fixed_s + token_s * num_streams
        seconds = auto.usual_s(num_streams, 0)
        budget = auto.budget(seconds, num_streams, 0)
        assert budget is not None
        step_s = fixed_s + token_s * budget
        assert step_s <= 5.01 * alone
        beside_s, free_s = step_s / (budget - num_streams), (fixed_s + token_s * 512) / 512  # of a prompt's token
        assert beside_s <= 1.27 * free_s or budget >= 512


def test_prompts_alone_before_urgent_ones_cost_a_fortieth_of_the_rate() -> None:
    auto = times(target_itl_ms="auto")
    seconds = auto.usual_s(0, 0)
    assert seconds is not None
    assert 0.010 / seconds - 0.010 / 0.522 == pytest.approx(0.025)
    assert auto.budget(seconds, 0, 0) == int((seconds - 0.010) / 0.001)


def test_before_costs_are_known_auto_limits_prompts_to_a_chunk() -> None:
    auto = times(CostModel(), target_itl_ms="auto")
    assert auto.budget(auto.usual_s(10, 0), 10, 0) == 266


def test_off_and_other_policies_have_no_limit() -> None:
    for settings in ({"target_itl_ms": "off"}, {}, {"target_itl_ms": "auto", "batching_policy": "prefill_first"}):
        free = times(**settings)
        assert free.budget(free.usual_s(10, 0), 10, 0) is None


def test_a_fixed_target_is_kept_whatever_queues() -> None:
    fixed = times(target_itl_ms=50)
    assert fixed.budget(fixed.usual_s(10, 0), 10, 0) == 40
    assert fixed.budget(0.001, 10, 0) == 10 + 16, "late is better than never"


def test_background_requests_get_a_tenth_of_a_step_s_time() -> None:
    interactive, background = request(4), request(4, is_background=True)
    free = times()
    assert free.background_budget([interactive] * 10 + [background], []) == 2, "of 20 ms"
    assert free.background_budget([interactive], [background]) == 1
    assert free.background_budget([], [interactive, background]) == 1
    assert free.background_budget([background], []) is None, "alone they have all"
    assert free.background_budget([interactive], [interactive]) is None


def test_a_prompt_takes_longer_beside_decodes_and_in_smaller_steps() -> None:
    free, prompt = times(), request(1000)
    alone = free.prompt_s(prompt, None, 0, 0)
    assert abs(alone - (1.0 + 1000 / 512 * 0.010)) < 1e-9
    assert free.prompt_s(prompt, None, 32, 0) > alone
    assert free.prompt_s(prompt, 64, 32, 0) > 1.5 * alone
