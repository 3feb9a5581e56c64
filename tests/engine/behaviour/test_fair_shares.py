"""Fairness under the simulated clock: what tenants of unequal greed get, and what the greediest one loses."""

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.extras.simulation.simulator import Arrival, Served, Simulation

# Seconds of a step, per token and per token of context: SmolLM2 in float32 on two cores, as its server learns them, and
# a device whose steps take the same time whatever is in them.
COSTS = {"SmolLM2": CostModel.fixed(13e-3, 1.4e-3, 2.3e-6), "constant": CostModel.fixed(20e-3, 0.0, 0.0)}
WEIGHTS = {"long": 1.0, "steady": 1.0, "short": 1.0, "paid": 2.0}


def simulate(
    load: Iterable[Arrival], cost: CostModel, *, num_seqs: int, weights: dict[str, float] | None = None
) -> list[tuple[str, Served]]:
    """Return each request's tenant and times."""
    arrivals = sorted(load, key=lambda arrival: arrival.arrival_s)
    config = ResolvedConfig.of(
        EngineConfig(
            scheduling_policy="fair", max_num_seqs=num_seqs, tenant_weights=weights, enable_prefix_caching=False
        ),
        device="cpu",
    )
    simulation = Simulation(config, num_blocks=7794, cost=cost)
    simulation.run(arrivals)
    return [(arrival.tenant, served) for arrival, served in zip(arrivals, simulation.served, strict=True)]


def seconds_for(requests: Iterable[tuple[str, Served]], tenant: str, *, share: float) -> float:
    """Return when the tenant has so large a share of all its tokens."""
    times = sorted(time for name, served in requests if name == tenant for time in served.token_times)
    return times[round(share * len(times)) - 1]


@pytest.mark.parametrize(
    ("cost", "num_tokens"),
    [
        ("SmolLM2", 200),
        pytest.param("constant", 200, marks=pytest.mark.thorough),
        pytest.param("SmolLM2", 1900, marks=pytest.mark.thorough),
    ],
)
def test_a_key_on_every_seat_loses_less_than_a_twentieth(cost: str, num_tokens: int) -> None:
    """Eight requests with n = 64 fill 64 seats; another key asks for one token, ten times.

    With SmolLM2's steps all of it ends less than 5 % later. Where a step of one row costs as much as one of 64, the few
    sequences at the end count as much as all before, so there the rate is compared, over the first 7/8 of the tokens.
    """
    greedy = [Arrival(0.0, 5, num_tokens, tenant="greedy") for _ in range(8 * 64)]
    alone = simulate(greedy, COSTS[cost], num_seqs=64)
    share = 1.0 if cost == "SmolLM2" else 7 / 8
    before = seconds_for(alone, "greedy", share=share)
    quick = [Arrival(before * (i + 1) / 14, 30, 1, tenant="quick") for i in range(10)]
    beside = simulate([*greedy, *quick], COSTS[cost], num_seqs=64)
    after = seconds_for(beside, "greedy", share=share)
    assert 1.0 <= after / before < 1.05
    waits = [served.token_times[0] - served.arrival_s for name, served in beside if name == "quick"]
    assert len(waits) == 10
    assert max(waits) < 2.0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_tenants_of_unequal_greed_get_what_their_weights_say(seed: int) -> None:
    """Long answers, a steady crowd, many short requests and long prompts: each share within 2 % of its weight's."""
    rng = random.Random(seed)

    def load(tenant: str, at_s: float, count: int, prompts: tuple[int, int], outputs: tuple[int, int]) -> list[Arrival]:
        return [Arrival(at_s, rng.randint(*prompts), rng.randint(*outputs), tenant=tenant) for _ in range(count)]

    requests = simulate(
        [
            *load("long", 0.0, 40, (4, 8), (1500, 1900)),
            *load("steady", 1.0, 90, (50, 150), (100, 300)),
            *load("short", 2.0, 1000, (4, 30), (1, 20)),
            *load("paid", 3.0, 120, (200, 900), (50, 100)),
        ],
        COSTS["SmolLM2"],
        num_seqs=24,
        weights=WEIGHTS,
    )
    # All compete until the last request of one of them has begun.
    begun = {name: max(served.token_times[0] for of, served in requests if of == name) for name in WEIGHTS}
    start, end = 10.0, min(begun.values())
    assert end > 200.0
    service = Counter[str]()
    for name, served in requests:
        num_tokens = sum(start <= time < end for time in served.token_times)
        service[name] += 2 * num_tokens + served.prompt_len * (start <= served.token_times[0] < end)
    for name, weight in WEIGHTS.items():
        promise = weight / sum(WEIGHTS.values())
        assert service[name] / service.total() == pytest.approx(promise, rel=0.02), name
