"""The pacer in a simulated engine: who goes first, who is told no, and who does not starve."""

from collections.abc import Iterator
from typing import Any

import pytest
from scheduler_bench import request

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.batch import NO_OUTPUT, Batch, Moves, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.core.step_pipeline import StepPipeline
from splitfuse.engine.extras.deadlines.pacer import DeadlinePacer, FairShare
from splitfuse.engine.serving.output_processor import OutputProcessor

COST = CostModel.fixed(0.010, 0.001, 0.0)


class Bench:
    """Engine whose steps take the time of COST, on a clock of its own."""

    def __init__(self, num_blocks: int = 5000, **settings: Any) -> None:
        self.now = 100.0
        settings = {"max_num_batched_tokens": 128, "enable_prefix_caching": False} | settings
        config = ResolvedConfig.of(EngineConfig(**settings), device="cpu")
        self.pacer = DeadlinePacer(config, COST)
        scheduler = Scheduler(config, BlockManager(CacheSpec(num_blocks, 16), prefix_caching=False))
        clock = lambda: self.now  # noqa: E731
        self.core = EngineCore(config, scheduler, OutputProcessor(None), cost_model=COST, pacer=self.pacer, clock=clock)
        self._pipeline = StepPipeline(self.core, self)
        self._names: Iterator[int] = iter(range(10**6))

    def move(self, moves: Moves) -> None: ...

    def run(self, batch: Batch) -> list[RowOutput]:
        self.now += COST.predict(batch.num_tokens, sum(row.start for row in batch.rows))
        return [RowOutput((7,)) if row.needs_sampling else NO_OUTPUT for row in batch.rows]

    def new(self, num_tokens: int, num_new: int = 8, **params: Any) -> Request:
        added = request(num_tokens, num_new, name=f"r{next(self._names)}", **params)
        added.arrival_time = self.now
        return added

    def add(self, num_tokens: int, num_new: int = 8, **params: Any) -> Request:
        added = self.new(num_tokens, num_new, **params)
        self.core.add([added])
        return added

    def step(self) -> None:
        self._pipeline.step()
        self.core.scheduler.check()
        self.pacer.check()

    def run_until_ended(self, *requests: Request) -> None:
        for _ in range(3000):
            if all(r.is_finished for r in requests):
                return
            self.step()
        raise AssertionError(f"{requests} have not ended")


def ttft(served: Request) -> float:
    assert served.first_token_time is not None
    return served.first_token_time - served.arrival_time


def test_a_short_prompt_with_a_goal_goes_before_a_long_one_that_has_begun() -> None:
    bench = Bench()
    long = bench.add(2000)
    bench.step()
    assert long.num_computed_tokens
    short = bench.add(64, ttft_ms=300)
    bench.run_until_ended(long, short)
    assert ttft(short) < 0.3
    assert ttft(long) < 2.6
    assert bench.pacer.stats()["ttft_goal_hits"] == 1


def test_without_goals_the_queue_s_order_stays() -> None:
    bench = Bench()
    long, short = bench.add(2000), bench.add(64)
    bench.run_until_ended(long, short)
    assert short.first_token_time is not None
    assert long.first_token_time is not None
    assert short.first_token_time >= long.first_token_time


def test_of_prompts_that_cannot_all_be_in_time_most_are() -> None:
    bench = Bench()
    requests = [bench.add(1000, ttft_ms=1200), *(bench.add(100, ttft_ms=1000) for _ in range(7))]
    bench.run_until_ended(*requests)
    assert [ttft(r) <= 1.0 for r in requests[1:]] == [True] * 7
    assert bench.pacer.stats()["ttft_goal_misses"] == 1


def test_streams_with_a_goal_limit_the_prompts_beside_them() -> None:
    bench = Bench(max_num_batched_tokens=512)
    stream = bench.add(8, 60, itl_ms=60)
    for _ in range(3):
        bench.step()
    long = bench.add(1500)
    bench.run_until_ended(stream, long)
    assert bench.pacer.stats()["itl_goal_hits"] == 1


def test_prompts_alone_are_cut_where_a_goal_waits() -> None:
    bench = Bench(max_num_batched_tokens=2048, target_itl_ms="auto")
    bench.add(4000)
    bench.step()
    whole = bench.now
    bench.add(4000, ttft_ms=60_000)
    bench.step()
    assert whole - 100.0 == pytest.approx(COST.predict(2048, 0))
    assert bench.now - whole <= COST.predict(360, 2048)  # 0.01 / (0.025 + 0.01 / 2.058) seconds


def overload(bench: Bench, waits: Request) -> float:
    """Return the seconds that a request waits beside more urgent prompts than can be computed."""
    for _ in range(2000):
        while sum(r.num_uncomputed_tokens > 1 for r in bench.core.scheduler.waiting) < 6:
            bench.add(200, ttft_ms=800)
        bench.step()
        if waits.first_token_time is not None:
            return ttft(waits)
    raise AssertionError("it starves")


@pytest.mark.parametrize("settings", [{}, {"num_blocks": 80}, {"max_num_seqs": 2}, {"scheduling_policy": "fair"}])
def test_a_request_without_a_goal_does_not_starve(settings: dict[str, Any]) -> None:
    bench = Bench(**settings)
    for _ in range(20):
        bench.add(200, ttft_ms=800)
    waits = bench.add(900)
    # Alone it takes 1 s. It shares a tenth of the machine with prompts before it whose goals were missed.
    assert overload(bench, waits) < 30


def test_without_its_share_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FairShare, "computed", lambda *arguments: None)
    with pytest.raises(AssertionError, match="it starves"):
        test_a_request_without_a_goal_does_not_starve({})


@pytest.mark.parametrize("policy", ["priority", "fair"])
def test_a_goal_takes_no_place_of_another_priority_or_tenant(policy: str) -> None:
    bench = Bench(max_num_seqs=1, scheduling_policy=policy)
    bench.add(8, 4)
    bench.step()
    other = bench.add(100, tenant="ann", priority=0)
    urgent = bench.add(100, tenant="ben", priority=1, ttft_ms=1)
    bench.run_until_ended(other, urgent)
    assert ttft(other) < ttft(urgent)


def test_the_outlook_counts_the_prompts_that_go_first() -> None:
    bench = Bench()
    assert bench.pacer.outlook(bench.new(100), [], []) is None
    for _ in range(5):
        bench.add(400, ttft_ms=3000)
    scheduler = bench.core.scheduler
    last = bench.pacer.outlook(bench.new(100, ttft_ms=4000), scheduler.running, scheduler.waiting)
    first = bench.pacer.outlook(bench.new(100, ttft_ms=200), scheduler.running, scheduler.waiting)
    assert last is not None
    assert first is not None
    assert 2.0 < last.predicted_s < 2.6
    assert first.predicted_s < 0.2


def test_the_outlook_comes_true() -> None:
    bench = Bench()
    for _ in range(5):
        bench.add(400, ttft_ms=3000)
    scheduler, late = bench.core.scheduler, bench.new(100, ttft_ms=4000)
    outlook = bench.pacer.outlook(late, scheduler.running, scheduler.waiting)
    bench.core.add([late])
    bench.run_until_ended(late)
    assert outlook is not None
    assert ttft(late) == pytest.approx(outlook.predicted_s, rel=0.2)
