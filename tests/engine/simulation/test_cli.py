"""Simulations: what comes out is what the scheduler did under the clock, worked out by hand where it can be."""

import io
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.scheduler.cost_model import CostModel
from splitfuse.engine.simulation.arrival_trace import TraceRequest, normal_lengths, poisson_arrivals
from splitfuse.engine.simulation.cli import StepCounts, splitfuse_schedule
from splitfuse.engine.simulation.simulator import Simulation
from splitfuse.engine.simulation.slo import Served, ServiceLevel, effective_throughput, moving_average, percentile
from splitfuse.server.cli import main

# A step takes a second and a tenth per token.
COST = CostModel.fixed(1.0, 0.1, 0.0)
POLICIES = ("splitfuse", "prefill_first", "decode_first", "static")
PROMISED = {
    *("policy", "requests", "steps", "ttft_p50", "ttft_p95", "itl_p50", "itl_p95", "itl_p99"),
    *("tokens_per_s", "num_preemptions", "kv_waste", "steps_per_s"),
}


def simulate(
    load: list[TraceRequest], *, num_clients: int | None = None, num_blocks: int = 1000, **settings: Any
) -> Simulation:
    config = EngineConfig(**{"enable_prefix_caching": False, "block_size": 4, **settings})
    simulation = Simulation(config, num_blocks=num_blocks, cost=COST)
    simulation.run(load, num_clients=num_clients)
    return simulation


def test_one_request_by_hand() -> None:
    simulation = simulate([TraceRequest(10.0, 8, 3)], max_num_batched_tokens=6)
    (served,) = simulation.served
    # From 10 s: a chunk of 6, one of 2 with the first token, then two decodes.
    assert served.token_times == pytest.approx([10 + 1.6 + 1.2, 13.9, 15.0])
    assert served.ttft == pytest.approx(2.8)
    assert served.gaps == pytest.approx([1.1, 1.1])
    assert (simulation.num_steps, simulation.num_tokens) == (4, 10)
    # After the steps 6, 8 and 9 tokens lie in 2, 2 and 3 blocks of 4; after the last one nobody is there.
    assert simulation.kv_waste == pytest.approx((2 / 8 + 0 / 8 + 3 / 12) / 4)
    assert simulation.kv_waste_by_size == pytest.approx(5 / 28)


def test_context_costs_too() -> None:
    config = EngineConfig(enable_prefix_caching=False)
    simulation = Simulation(config, num_blocks=100, cost=CostModel.fixed(0.0, 0.0, 1.0))
    simulation.run([TraceRequest(0.0, 10, 3)])
    assert simulation.served[0].token_times == [0.0, 10.0, 21.0]


def test_a_late_arrival_joins_the_next_step() -> None:
    simulation = simulate([TraceRequest(0.0, 4, 5), TraceRequest(0.5, 4, 1)])
    first, second = simulation.served
    assert first.token_times[0] == pytest.approx(1.4)
    assert second.token_times == pytest.approx([2.9])
    assert second.ttft == pytest.approx(2.4)


def test_a_closed_loop_never_has_more_requests_than_clients() -> None:
    simulation = simulate(normal_lengths(50, prompt_len=20, output_len=5, seed=0), num_clients=3)
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
    load = poisson_arrivals(normal_lengths(60, prompt_len=40, output_len=6, seed=1), rate=0.2, seed=1)
    simulation = simulate(load, batching_policy=policy, max_num_batched_tokens=64, num_blocks=40)
    assert [len(s.token_times) for s in simulation.served] == [r.output_len for r in load]
    assert all(s.token_times == sorted(s.token_times) for s in simulation.served)
    assert all(s.token_times[0] > s.arrival_s for s in simulation.served)


def test_the_same_seed_is_the_same_run() -> None:
    load = poisson_arrivals(normal_lengths(40, prompt_len=40, output_len=6, seed=1), rate=0.2, seed=1)
    assert simulate(load).served == simulate(load).served


def test_a_long_prompt_delays_decodes_less_under_splitfuse() -> None:
    load = [TraceRequest(0.0, 4, 30), *(TraceRequest(10.0 + i, 300, 2) for i in range(5))]
    worst = {
        policy: max(simulate(load, batching_policy=policy, max_num_batched_tokens=32).served[0].gaps)
        for policy in ("splitfuse", "prefill_first")
    }
    assert worst["splitfuse"] == pytest.approx(1 + 3.2)
    assert worst["prefill_first"] > 5 * worst["splitfuse"]


def test_what_cannot_fit_is_refused_and_the_rest_is_served() -> None:
    simulation = simulate([TraceRequest(0.0, 100, 1), TraceRequest(0.0, 10, 1)], num_blocks=10)
    assert simulation.num_refused == 1
    assert [s.prompt_len for s in simulation.served] == [10]


def test_shared_prefixes_are_found() -> None:
    load = [TraceRequest(100.0 * i, 40, 2, hash_ids=(1, 2), block_len=20) for i in range(2)]
    simulation = simulate(load, enable_prefix_caching=True)
    assert simulation.num_cached_tokens == 36  # all full blocks but the one with the last token
    assert simulation.served[1].ttft < simulation.served[0].ttft


def test_a_latency_target_bounds_the_gap_of_decodes_beside_a_long_prompt() -> None:
    load = [TraceRequest(0.0, 4, 40), TraceRequest(5.0, 400, 2)]
    aimed = simulate(load, max_num_batched_tokens=512, target_itl_ms=3000.0)
    assert max(aimed.served[0].gaps) == pytest.approx(3.0, abs=0.1)
    assert max(simulate(load, max_num_batched_tokens=512).served[0].gaps) > 40


def test_swapping_takes_time() -> None:
    load = [TraceRequest(0.0, 16, 20) for _ in range(4)]
    config = EngineConfig(block_size=4, enable_prefix_caching=False, swap_space=1.0, preemption_mode="swap")
    ends = []
    for swap_s in (0.0, 1.0):
        simulation = Simulation(config, num_blocks=20, num_host_blocks=20, cost=COST, swap_s=swap_s)
        simulation.run(load)
        assert simulation.scheduler.num_preemptions > 0
        ends.append(simulation.now)
    assert ends[1] > ends[0] + 5


def test_moving_average_is_pandas_ewm() -> None:
    values, keep = [1.0, 2.0, 4.0, 0.0, 7.5], 15 / 17
    weights = [keep**age for age in range(5)]
    expected = [
        sum(weight * value for weight, value in zip(weights, reversed(values[:n]), strict=False)) / sum(weights[:n])
        for n in range(1, 6)
    ]
    assert moving_average(values) == pytest.approx(expected)


def test_effective_throughput() -> None:
    level = ServiceLevel(prompt_rate=100.0, max_gap_s=0.1)
    good = Served(50, 1.0, [1.5, 1.55, 1.6])
    late = Served(50, 1.0, [1.6, 1.65])
    slow = Served(50, 1.0, [1.4, 1.45, 1.9])
    single = Served(50, 1.0, [1.2])
    assert [level.is_met_by(each) for each in (good, late, slow, single)] == [True, False, False, True]
    assert effective_throughput([good, late, slow, single], level, duration_s=4.0) == 0.5


def test_percentile() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 99) == 3.0
    assert percentile([0.0, 1.0, 2.0, 3.0], 50) == 1.5
    assert percentile([float(i) for i in range(101)], 95) == 95.0


def test_the_schedule_of_the_example() -> None:
    steps = splitfuse_schedule([1536, 128, 512, 4096, 64], [64] * 5, 1024, 512)
    assert steps[:4] == [StepCounts(1024, 0, 3), StepCounts(1023, 1, 3), StepCounts(1022, 2, 2), StepCounts(576, 3, 2)]
    assert sum(step.prefill for step in steps) == 1536 + 128 + 512 + 4096 + 64
    assert sum(step.decode for step in steps) == 5 * 63
    assert all(step.prefill + step.decode <= 1024 for step in steps)
    assert steps[-1] == StepCounts(0, 1, 0)


def test_a_schedule_without_a_piece_size_and_of_a_rival() -> None:
    assert splitfuse_schedule([10, 3], [2, 1], 8) == [(8, 0, 1), (5, 0, 2), (0, 1, 0)]
    assert splitfuse_schedule([10, 3], [2, 1], 8, batching_policy="prefill_first") == [(10, 0, 1), (3, 0, 1), (0, 1, 0)]


@pytest.mark.parametrize(("prompts", "outputs"), [([], []), ([1], [1, 2]), ([0], [1]), ([1], [0])])
def test_a_schedule_of_nothing_is_refused(prompts: list[int], outputs: list[int]) -> None:
    with pytest.raises(ConfigError):
        splitfuse_schedule(prompts, outputs, 8)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    rows = "".join(f"{i * 0.05},{100 + 37 * i % 400},{1 + i % 20}\n" for i in range(40))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["simulate", *argv, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    figures: dict[str, Any] = json.loads(out)
    return figures


@pytest.mark.parametrize("policy", POLICIES)
def test_the_command(policy: str, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    figures = run(capsys, "--trace", trace, "--scale", "0.125", "--limit", "30", "--batching-policy", policy)
    assert set(figures) >= PROMISED
    assert (figures["policy"], figures["requests"]) == (policy, 30)
    assert 0 < figures["ttft_p50"] <= figures["ttft_p95"]
    assert 0 < figures["itl_p50"] <= figures["itl_p95"] <= figures["itl_p99"]
    assert 0 <= figures["kv_waste"] < 1
    assert figures["steps_per_s"] > 0


def test_the_command_in_a_closed_loop_and_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    figures = run(capsys, "--clients", "4", "--limit", "20", "--max-num-batched-tokens", "128")
    assert figures["requests"] == 20
    assert 0 <= figures["effective_requests_per_s"] <= figures["requests_per_s"]
    assert main(["simulate", "--request-rate", "3", "--limit", "20"]) == 0
    assert "requests                    20" in capsys.readouterr().out


def test_a_looser_service_level_is_met_by_more(capsys: pytest.CaptureFixture[str]) -> None:
    loose = run(capsys, "--clients", "4", "--limit", "20", "--sla-prompt-rate", "1", "--sla-token-rate", "1")
    assert loose["effective_requests_per_s"] == pytest.approx(loose["requests_per_s"])
    assert loose["sla_max_gap_s"] == 1


def test_a_smaller_pool_preempts(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--clients", "16", "--limit", "40", "--output-len", "64")
    assert run(capsys, *load)["num_preemptions"] == 0
    assert run(capsys, *load, "--num-kv-blocks", "80")["num_preemptions"] > 0


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ([], "simulate needs a load"),
        (["--trace", "/none.csv"], "cannot be read"),
        (["--clients", "0"], "--clients must be above 0"),
        (["--clients", "2", "--limit", "-1"], "--limit must be above 0"),
        (["--request-rate", "nan"], "--request-rate must be above 0"),
        (["--clients", "2", "--cost", "1,2"], "not three numbers"),
        (["--clients", "2", "--cost", "0,0,0"], "not all 0"),
        (["--clients", "2", "--batching-policy", "lifo"], "batching_policy"),
        (["--clients", "2", "--num-kv-blocks", "1"], "larger --num-kv-blocks"),
        (["--clients", "2", "--log-steps", "/no/such/folder/a"], "--log-steps /no/such/folder/a cannot be written"),
        (["--clints", "2"], "did you mean --clients?"),
    ],
)
def test_what_is_wrong_is_one_line(argv: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *argv]) == 2
    assert part in capsys.readouterr().err


def test_the_step_log_is_the_servers_line_and_more() -> None:
    log = io.StringIO()
    config = EngineConfig(enable_prefix_caching=False)
    simulation = Simulation(config, num_blocks=50, cost=COST, log=log)
    simulation.run([TraceRequest(0.0, 8, 3), TraceRequest(0.0, 4, 2)])
    lines = log.getvalue().splitlines()
    assert len(lines) == simulation.num_steps == 3
    assert lines[0].startswith("[Step=0] prefill_tokens=12 decode_tokens=0 running=2 waiting=0 blocks=2/50 ")
    assert lines[1].startswith("[Step=1] prefill_tokens=0 decode_tokens=2 ")
    assert lines[1].endswith("time=3.400000 gap_ms=1200.0")


def peak_and_worst_gap(policy: str) -> tuple[float, float]:
    """Best effective throughput over numbers of clients, and the 95th percentile of the gaps at 16 clients."""
    # A 70 B-parameter model on four A100: a decode step takes 60 ms, a pass of 768 tokens 190 ms (FastGen, figure 5).
    cost = CostModel.fixed(0.06, 1.7e-4, 2e-7)
    level = ServiceLevel(prompt_rate=512, max_gap_s=0.25)
    rates, gaps = [], [0.0]
    for num_clients in (4, 6, 8, 16):
        config = EngineConfig(enable_prefix_caching=False, batching_policy=policy, max_num_batched_tokens=768)
        simulation = Simulation(config, num_blocks=20_000, cost=cost)
        simulation.run(normal_lengths(128, prompt_len=2600, output_len=60, seed=0), num_clients=num_clients)
        rates.append(effective_throughput(simulation.served, level, duration_s=simulation.now))
        gaps = sorted(gap for served in simulation.served for gap in served.gaps)
    return max(rates), percentile(gaps, 95) or 0.0


@pytest.mark.slow
def test_fastgens_comparison_comes_out_as_published() -> None:
    """At 4 tokens per second: 2.3 times the effective throughput, 3.7 times shorter gaps (arXiv 2401.08671)."""
    splitfuse, rival = peak_and_worst_gap("splitfuse"), peak_and_worst_gap("prefill_first")
    assert splitfuse[0] / rival[0] > 1.7
    assert rival[1] / splitfuse[1] > 2.5
