"""Simulations: results agree with the scheduler's steps under the clock, computed by hand where possible."""

import itertools
import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.extras.simulation.replay import Replayed, replay
from splitfuse.engine.extras.simulation.simulator import Arrival, Served, Simulation
from splitfuse.engine.extras.simulation.timeline import read_timeline

# A step takes a second and a tenth per token.
COST = CostModel.fixed(1.0, 0.1, 0.0)
POLICIES = ("splitfuse", "prefill_first", "decode_first", "static")


def random_load(count: int, *, prompt_len: float, output_len: float, rate: float | None = None) -> list[Arrival]:
    """Return requests of normally distributed lengths; without a rate all come at 0 s."""
    source = random.Random(1)
    now, arrivals = 0.0, []
    for _ in range(count):
        lengths = (max(1, round(source.gauss(mean, 0.3 * mean))) for mean in (prompt_len, output_len))
        arrivals.append(Arrival(now, *lengths))
        now += 0.0 if rate is None else source.expovariate(rate)
    return arrivals


def ttft(served: Served) -> float:
    return served.token_times[0] - served.arrival_s


def gaps(served: Served) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(served.token_times)]


def simulate(
    load: list[Arrival], *, num_clients: int | None = None, num_blocks: int = 1000, **settings: Any
) -> Simulation:
    config = ResolvedConfig.of(
        EngineConfig(**{"enable_prefix_caching": False, "block_size": 4, **settings}), device="cpu"
    )
    simulation = Simulation(config, num_blocks=num_blocks, cost=COST)
    simulation.run(load, num_clients=num_clients)
    return simulation


def test_one_request_by_hand() -> None:
    simulation = simulate([Arrival(10.0, 8, 3)], max_num_batched_tokens=6)
    (served,) = simulation.served
    # From 10 s: a chunk of 6, one of 2 with the first token, then two decodes.
    assert served.token_times == pytest.approx([10 + 1.6 + 1.2, 13.9, 15.0])
    assert ttft(served) == pytest.approx(2.8)
    assert gaps(served) == pytest.approx([1.1, 1.1])
    assert (simulation.num_steps, simulation.num_tokens) == (4, 10)
    # After the steps 6, 8 and 9 tokens lie in 2, 2 and 3 blocks of 4; after the last step no request is left.
    assert simulation.kv_waste == pytest.approx((2 / 8 + 0 / 8 + 3 / 12) / 4)
    assert simulation.kv_waste_by_size == pytest.approx(5 / 28)


def test_context_costs_too() -> None:
    config = ResolvedConfig.of(EngineConfig(enable_prefix_caching=False), device="cpu")
    simulation = Simulation(config, num_blocks=100, cost=CostModel.fixed(0.0, 0.0, 1.0))
    simulation.run([Arrival(0.0, 10, 3)])
    assert simulation.served[0].token_times == pytest.approx([0.0, 10.0, 21.0], abs=1e-6)


def test_a_late_arrival_joins_the_next_step() -> None:
    simulation = simulate([Arrival(0.0, 4, 5), Arrival(0.5, 4, 1)])
    first, second = simulation.served
    assert first.token_times[0] == pytest.approx(1.4)
    assert second.token_times == pytest.approx([2.9])
    assert ttft(second) == pytest.approx(2.4)


def test_a_closed_loop_never_has_more_requests_than_clients() -> None:
    simulation = simulate(random_load(50, prompt_len=20, output_len=5), num_clients=3)
    assert len(simulation.served) == 50
    changes = sorted(
        [(s.arrival_s, 1) for s in simulation.served] + [(s.token_times[-1], -1) for s in simulation.served]
    )
    now = 0
    levels = [now := now + change for _, change in changes]
    assert max(levels) == 3
    assert statistics.median(levels) >= 2


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_gets_its_tokens_under_any_policy(policy: str) -> None:
    load = random_load(60, prompt_len=40, output_len=6, rate=0.2)
    simulation = simulate(load, batching_policy=policy, max_num_batched_tokens=64, num_blocks=40)
    assert [len(s.token_times) for s in simulation.served] == [r.output_len for r in load]
    assert all(s.token_times == sorted(s.token_times) for s in simulation.served)
    assert all(s.token_times[0] > s.arrival_s for s in simulation.served)


def test_the_same_seed_is_the_same_run() -> None:
    load = random_load(40, prompt_len=40, output_len=6, rate=0.2)
    assert simulate(load).served == simulate(load).served


def test_a_long_prompt_delays_decodes_less_under_splitfuse() -> None:
    load = [Arrival(0.0, 4, 30), *(Arrival(10.0 + i, 300, 2) for i in range(5))]
    worst = {
        policy: max(gaps(simulate(load, batching_policy=policy, max_num_batched_tokens=32).served[0]))
        for policy in ("splitfuse", "prefill_first")
    }
    assert worst["splitfuse"] == pytest.approx(1 + 3.2)
    assert worst["prefill_first"] > 5 * worst["splitfuse"]


def test_what_cannot_fit_is_refused_and_the_rest_is_served() -> None:
    simulation = simulate([Arrival(0.0, 100, 1), Arrival(0.0, 10, 1)], num_blocks=10)
    assert simulation.num_refused == 1
    assert [s.prompt_len for s in simulation.served] == [10]


def test_shared_prefixes_are_found() -> None:
    load = [Arrival(100.0 * i, 40, 2, prompt=lambda: range(40)) for i in range(2)]
    simulation = simulate(load, enable_prefix_caching=True)
    assert simulation.num_cached_tokens == 36  # all full blocks except the last token's
    assert ttft(simulation.served[1]) < ttft(simulation.served[0])


def test_a_latency_target_bounds_the_gap_of_decodes_beside_a_long_prompt() -> None:
    load = [Arrival(0.0, 4, 40), Arrival(5.0, 400, 2)]
    aimed = simulate(load, max_num_batched_tokens=512, target_itl_ms=3000.0)
    assert max(gaps(aimed.served[0])) == pytest.approx(3.0, abs=0.1)
    assert max(gaps(simulate(load, max_num_batched_tokens=512).served[0])) > 40


def test_swapping_takes_time() -> None:
    load = [Arrival(0.0, 16, 20) for _ in range(4)]
    config = ResolvedConfig.of(
        EngineConfig(block_size=4, enable_prefix_caching=False, swap_space=1.0, preemption_mode="swap"), device="cpu"
    )
    ends = []
    for swap_s in (0.0, 1.0):
        simulation = Simulation(config, num_blocks=20, num_host_blocks=20, cost=COST, swap_s=swap_s)
        simulation.run(load)
        assert simulation.scheduler.num_preemptions > 0
        ends.append(simulation.now)
    assert ends[1] > ends[0] + 5


def test_a_recording_of_it_has_its_steps_and_can_be_replayed(tmp_path: Path) -> None:
    wishes = EngineConfig(enable_prefix_caching=False, record=str(tmp_path / "run.jsonl"))
    simulation = Simulation(ResolvedConfig.of(wishes, device="cpu"), num_blocks=50, cost=COST)
    simulation.run([Arrival(0.0, 8, 3), Arrival(0.0, 4, 2)])
    spans = read_timeline(tmp_path / "run.jsonl").spans
    assert len(spans) == simulation.num_steps == 3
    assert [(span.prefill, span.decode, span.running) for span in spans[:2]] == [(12, 0, 2), (0, 2, 2)]
    assert (spans[0].gap, spans[1].gap) == (None, pytest.approx(1.2))
    assert replay(tmp_path / "run.jsonl") == Replayed(3)
