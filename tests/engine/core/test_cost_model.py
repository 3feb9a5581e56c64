"""The step-time model: learns what is there, shrugs off what is not, and turns a target into a budget."""

import json
import random

import pytest

from splitfuse.engine.core.cost_model import CPU_SECONDS, CostModel

TRUE = CostModel.fixed(5e-3, 2e-4, 5e-7)


def some_step(rng: random.Random) -> tuple[int, int]:
    """Tokens and context: one step in eight has a prompt in it."""
    if rng.random() < 1 / 8:
        return 512, rng.randint(0, 4000)
    num_seqs = rng.randint(1, 16)
    return num_seqs, num_seqs * rng.randint(1, 400)


def teach(model: CostModel, *, steps: int, seed: int = 0, noise: float = 0.05, slower: float = 1.0) -> None:
    rng = random.Random(seed)
    for _ in range(steps):
        tokens, context = some_step(rng)
        model.observe(tokens, context, slower * TRUE.predict(tokens, context) * rng.lognormvariate(0, noise))


def assert_near(model: CostModel, *, slower: float = 1.0, within: float = 0.05) -> None:
    for tokens, context in ((1, 100), (16, 4000), (512, 0), (256, 2000)):
        wanted = slower * TRUE.predict(tokens, context)
        assert model.predict(tokens, context) == pytest.approx(wanted, rel=within), (tokens, context, model)


@pytest.mark.parametrize("factor", [1e-3, 1e-1, 1.0, 10.0, 1e3])
def test_it_finds_the_truth_from_any_start(factor: float) -> None:
    a, b, c = CPU_SECONDS
    model = CostModel((a * factor, b * factor, c * factor))
    teach(model, steps=1000)
    assert_near(model, within=0.08)


def test_its_error_is_that_of_the_noise() -> None:
    model = CostModel()
    teach(model, steps=600, noise=0.05)
    values = model.to_dict()
    assert values["num_steps"] == 600
    assert values["median_error"] < 0.05
    assert values["median_error"] < values["p90_error"] < 0.15


def test_without_noise_it_is_exact() -> None:
    model = CostModel()
    teach(model, steps=300, noise=0.0)
    assert (model.a, model.b, model.c) == pytest.approx((TRUE.a, TRUE.b, TRUE.c), rel=1e-3)


def test_first_steps_that_compile_are_forgotten() -> None:
    model = CostModel()
    for tokens, context in ((512, 0), (1, 512), (256, 0), (2, 900)):
        model.observe(tokens, context, 10.0)
    teach(model, steps=60)
    assert_near(model, within=0.2)


def test_single_outliers_hardly_move_it() -> None:
    model = CostModel()
    rng = random.Random(3)
    teach(model, steps=300)
    for _ in range(300):
        tokens, context = some_step(rng)
        seconds = TRUE.predict(tokens, context) * rng.lognormvariate(0, 0.05)
        model.observe(tokens, context, seconds * (30 if rng.random() < 0.02 else 1))
    assert_near(model, within=0.15)


def test_it_follows_a_machine_that_became_slower() -> None:
    model = CostModel()
    teach(model, steps=300)
    teach(model, steps=150, seed=1, slower=2.5)
    assert_near(model, slower=2.5, within=0.15)


def test_many_decodes_do_not_wash_out_what_prompts_taught() -> None:
    model = CostModel()
    teach(model, steps=300)
    rng = random.Random(5)
    for _ in range(5000):
        tokens = rng.randint(1, 4)
        context = tokens * rng.randint(1, 400)
        model.observe(tokens, context, TRUE.predict(tokens, context) * rng.lognormvariate(0, 0.05))
    assert model.predict(512, 1000) == pytest.approx(TRUE.predict(512, 1000), rel=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_coefficients_are_never_negative_or_lost(seed: int) -> None:
    rng = random.Random(seed)
    model = CostModel()
    for _ in range(300):
        model.observe(rng.choice([1, 7, 512]), rng.choice([0, 1, 100_000]), rng.choice([1e-6, 1e-3, 1.0, 100.0]))
        assert min(model.a, model.b, model.c) >= 0
        assert 0 < model.predict(1, 1) < 1e6


def test_steps_without_a_duration_teach_nothing() -> None:
    model = CostModel()
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        model.observe(1, 1, seconds)
    assert model.num_steps == 0
    assert (model.a, model.b, model.c) == CPU_SECONDS


def test_a_fixed_model_stays() -> None:
    model = CostModel.fixed(1.0, 0.1, 0.01)
    teach(model, steps=10)
    assert model.predict(2, 3) == pytest.approx(1.23)
    assert model.to_dict()["median_error"] is None


@pytest.mark.parametrize("prior", [(-1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (float("nan"), 1.0, 1.0)])
def test_a_senseless_start_is_refused(prior: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="a, b, c"):
        CostModel(prior)


def test_the_budget_is_the_largest_that_meets_the_target() -> None:
    rng = random.Random(0)
    for _ in range(300):
        target, context = rng.uniform(0.0, 0.2), rng.randint(0, 50_000)
        budget = TRUE.budget_for(target, context, maximum=512)
        assert 1 <= budget <= 512
        assert budget == 1 or TRUE.predict(budget, context) <= target + 1e-12
        assert budget == 512 or TRUE.predict(budget + 1, context) > target - 1e-12


def test_the_budget_where_tokens_cost_nothing() -> None:
    model = CostModel.fixed(1.0, 0.0, 0.0)
    assert model.budget_for(2.0, 0, maximum=512) == 512
    assert model.budget_for(0.5, 0, maximum=512) == 1


def test_it_goes_through_json() -> None:
    model = CostModel()
    teach(model, steps=50)
    values = json.loads(json.dumps(model.to_dict()))
    assert values["num_steps"] == 50
