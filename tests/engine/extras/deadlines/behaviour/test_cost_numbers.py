"""No history of steps, and no costs of a fit, make a number of the pacer or of a prediction raise."""

import math
import random
from typing import Any

import pytest
from scheduler_bench import request

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.batch import NO_OUTPUT, Batch, Moves, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.cost_model import CPU_SECONDS, CostModel
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.engine.core.request import Request, Status
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.core.step_pipeline import StepPipeline
from splitfuse.engine.extras.deadlines.pacer import DeadlinePacer
from splitfuse.engine.extras.spec_decode.draft_length import DraftLengths
from splitfuse.engine.extras.spec_decode.step_cost import StepTimes
from splitfuse.engine.serving.output_processor import OutputProcessor
from splitfuse.engine.serving.wait_prediction import WaitPrediction

CONFIG = ResolvedConfig.of(EngineConfig(max_num_batched_tokens=512, target_itl_ms="auto", ttft_ms=2000), device="cpu")
COSTS = (0.0, 5e-324, 1e-300, 1e-12, 1e-6, 1e-3, 1.0, 1e9)


def ask_everything(model: CostModel) -> None:
    """Ask for each number that is made of the model's."""
    pacer = DeadlinePacer(CONFIG, model)
    core = EngineCore(
        CONFIG,
        Scheduler(CONFIG, BlockManager(CacheSpec(1000, 16), prefix_caching=False)),
        OutputProcessor(None),
        cost_model=model,
        pacer=pacer,
    )
    core.add([asked(30, ttft_ms=60_000)])
    WaitPrediction(core).admit(asked(30, ttft_ms=60_000, name="next"), is_new=False)
    WaitPrediction(core).predicted_s_until_ended(3)
    decode, background = asked(4, itl_ms=50), asked(9, is_background=True)
    for running in (decode, background):
        running.status = Status.RUNNING
        running.num_computed_tokens = 4
    pacer.note(decode)
    pacer.note(prompt := asked(400, ttft_ms=100))
    for running in ([], [decode], [decode, background], [background]):
        for waiting in ([], [prompt], [prompt, asked(5, is_background=True)]):
            pacer.pace(running, waiting, 1.0)
            pacer.outlook(asked(3, ttft_ms=5), running, waiting)
    assert model.predict(0, 0) > 0, "a step never costs nothing"
    assert model.budget_for(0.05, 100, maximum=512) in range(1, 513)


def asked(num_tokens: int, **params: Any) -> Request:
    return request(num_tokens, **params)


@pytest.mark.parametrize("a", COSTS)
@pytest.mark.parametrize("b", COSTS)
def test_no_costs_raise(a: float, b: float) -> None:
    for c in COSTS:
        model = CostModel.fixed(1.0, 0.0, 0.0)
        model.a, model.b, model.c = a, b, c
        ask_everything(model)


def test_no_history_raises() -> None:
    rng = random.Random(60)
    for _ in range(300):
        model = CostModel()
        for _ in range(rng.randrange(20, 120)):
            model.observe(*history_of(rng))
        ask_everything(model)


def history_of(rng: random.Random) -> tuple[int, int, float]:
    """Return tokens, context and seconds of a step: mostly one stream, whose context grows."""
    tokens, context = rng.choice([(1, rng.randrange(2000)), (rng.randrange(1, 513), 0), (1, 0)])
    return tokens, context, rng.choice([1e-9, 1e-6, 3e-4, 2e-3, 1.0, 30.0]) * (rng.random() + 1e-3)


def test_streams_alone_teach_that_a_step_costs_something() -> None:
    model = CostModel()
    for index in range(400):
        model.observe(1, index % 120, 1e-6 * (1 + index % 120))
    ask_everything(model)


class Machine:
    """Runner on a clock of its own. Its steps take as long as reading the context, under noise."""

    def __init__(self, rng: random.Random) -> None:
        self.now, self._rng = 100.0, rng

    def move(self, moves: Moves) -> None: ...

    def run(self, batch: Batch) -> list[RowOutput]:
        seconds = 1e-5 + 1e-6 * sum(row.start for row in batch.rows)
        self.now += seconds * self._rng.lognormvariate(0, 0.5)
        return [RowOutput((7,)) if row.needs_sampling else NO_OUTPUT for row in batch.rows]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(100))
def test_ten_requests_with_goals_beside_lone_streams(seed: int) -> None:
    model, machine = CostModel(), Machine(random.Random(seed))
    scheduler = Scheduler(CONFIG, BlockManager(CacheSpec(1000, 16), prefix_caching=False))
    clock = lambda: machine.now  # noqa: E731
    pacer = DeadlinePacer(CONFIG, model)
    core = EngineCore(CONFIG, scheduler, OutputProcessor(None), cost_model=model, pacer=pacer, clock=clock)
    pipeline = StepPipeline(core, machine)
    for _ in range(10):
        for new in (request(1, 120), request(30, 2, ttft_ms=60_000)):
            new.arrival_time = machine.now
            WaitPrediction(core).check_goal(new)
            core.add([new])
            while pipeline.has_work:
                pipeline.step()
            assert new.is_finished


def test_no_history_of_drafts_raises() -> None:
    rng = random.Random(61)
    for _ in range(100):
        times, lengths = StepTimes(CPU_SECONDS), DraftLengths[str](4)
        for _ in range(60):
            num_decodes, num_drafted = rng.randint(1, 64), rng.choice([0, 0, 3])
            seconds = rng.choice([2e-6, 1e-4, 1e-2, 10.0]) * (1 + rng.random())
            times.observe(num_decodes, num_drafted, rng.randrange(10_000), seconds)
            plain = times.plain(num_decodes, rng.randrange(10_000))
            assert all(map(math.isfinite, times.extra(num_decodes, plain)))
            lengths.choose(["one"], context=9)
            lengths.observe({}, num_decodes=num_decodes, context=9, seconds=seconds, draft_s=rng.random() * 1e-4)


def test_drafts_of_one_length_on_a_machine_that_becomes_slower() -> None:
    times = StepTimes(CPU_SECONDS)
    for index in range(100):
        times.observe(4, index >= 40, 100, 1.1e-6)
    for plain in (1e-6, 1e-3, 1.0, 100.0):
        assert all(0 <= seconds < 1e6 for seconds in times.extra(4, plain)), plain
