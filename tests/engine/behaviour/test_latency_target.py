"""A latency target sets each step's budget; a predicted wait refuses a request that would wait too long."""

import pytest
from engines import Collector, running_engine

from splitfuse.engine import SamplingParams
from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.batch import NO_OUTPUT, Batch, Moves, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.engine.core.outputs import StepStats
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.core.step_pipeline import StepPipeline
from splitfuse.engine.errors import QueueFullError
from splitfuse.engine.extras.deadlines.pacer import DeadlinePacer
from splitfuse.engine.serving.output_processor import OutputProcessor

SECONDS = (2e-3, 1e-4, 1e-7)  # simulated machine's times per step, per token, per token of context


class Machine:
    """Runner and clock: a step takes the time of the formula."""

    def __init__(self) -> None:
        self.now = 0.0

    def move(self, moves: Moves) -> None:
        pass

    def run(self, batch: Batch) -> list[RowOutput]:
        a, b, c = SECONDS
        self.now += a + b * batch.num_tokens + c * sum(row.start for row in batch.rows)
        return [RowOutput((7,)) if row.needs_sampling else NO_OUTPUT for row in batch.rows]


def life(**settings: object) -> list[StepStats]:
    """Return the steps of eight sequences that decode while prompts of 2,000 tokens come one after the other."""
    machine = Machine()
    config = ResolvedConfig.of(EngineConfig(max_num_batched_tokens=2048, **settings), device="cpu")  # type: ignore[arg-type]
    scheduler = Scheduler(config, BlockManager(CacheSpec(5000, 16), prefix_caching=True))
    model = CostModel()
    pacer = DeadlinePacer(config, model)
    core = EngineCore(
        config, scheduler, OutputProcessor(None), cost_model=model, pacer=pacer, clock=lambda: machine.now
    )
    pipeline = StepPipeline(core, machine)

    def add(name: str, num_prompt: int, num_new: int) -> None:
        params = SamplingParams()
        tokens = [int(name[1:])] * num_prompt  # different prompts, or the prefix cache would find them
        request = Request(
            request_id=name, prompt_token_ids=tokens, params=params, max_num_tokens=num_prompt + num_new, seed=0
        )
        core.add([request])

    for index in range(8):
        add(f"d{index}", 10, 600)
    steps = []
    for step in range(600):
        if step % 60 == 59:
            add(f"p{step}", 2000, 3)
        output = pipeline.step()
        core.scheduler.check()
        if output.stats is not None:
            steps.append(output.stats)
    return steps


def test_gaps_meet_the_target_once_the_cost_is_known() -> None:
    slowest = max(step.duration for step in life()[100:])
    assert slowest > 0.15, "a whole prompt beside decodes takes long"
    steps = life(target_itl_ms=30)
    assert max(step.duration for step in steps[100:]) < 0.033
    assert sum(step.num_prefill_tokens for step in steps) >= 9 * 2000, "prompts get through all the same"


def test_a_target_that_cannot_be_met_still_lets_prompts_through() -> None:
    steps = life(target_itl_ms=0.5)
    assert all(step.num_prefill_tokens for step in steps[61:100])


async def test_a_predicted_wait_refuses(tiny_folder: str) -> None:
    async with running_engine(tiny_folder, max_num_seqs=1, max_queue_seconds=1e-4, max_num_batched_tokens=16) as engine:
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        first, second = Collector(), Collector()
        await engine.submit([30], params, first)
        await first.until(40)
        await engine.submit([31] * 400, SamplingParams(max_tokens=9), second)
        with pytest.raises(QueueFullError, match="max-queue-seconds"):
            await engine.submit([32], params, Collector())
        assert engine.stats()["predicted_wait_s"] > 1e-4
