"""Life: a recorded scheduler to which seeded random things happen until all requests have ended."""

import io
import random

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.batch import NO_OUTPUT, Batch, RowFailure, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.plan import Pace
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.extras.inspection.histories import Histories
from splitfuse.engine.extras.simulation.recording import Recorder

STOP = 5
LONGEST = 120


class Life:
    """Life that `run` records; `busy_steps`: number of steps in which requests come."""

    def __init__(self, seed: int, *, busy_steps: int = 150) -> None:
        self._busy_steps = busy_steps
        self.rng = rng = random.Random(seed)
        has_swap = rng.random() < 0.4
        scheduling_policy = rng.choice(["fcfs", "priority", "fair"])
        self.config = ResolvedConfig.of(
            EngineConfig(
                block_size=rng.choice([1, 4, 16]),
                max_num_batched_tokens=rng.randint(1, 80),
                max_num_seqs=rng.randint(1, 12),
                long_prefill_token_threshold=rng.choice([0, rng.randint(1, 40)]),
                scheduling_policy=scheduling_policy,
                tenant_weights={"alice": 2, "bob": 0.5} if scheduling_policy == "fair" else None,
                batching_policy=rng.choice(["splitfuse", "prefill_first", "decode_first", "static"]),
                enable_prefix_caching=rng.random() < 0.5,
                swap_space=1.0 if has_swap else 0.0,
                preemption_mode=rng.choice(["auto", "recompute", "swap"]) if has_swap else "auto",
            ),
            device="cpu",
        )
        smallest = -(-LONGEST // self.config.block_size)
        num_host_blocks = rng.choice([1, smallest]) if has_swap else 0
        cache = CacheSpec(smallest + rng.choice([0, 1, 10, 100]), self.config.block_size, num_host_blocks)
        self.stream = io.StringIO()
        self.recorder = Recorder(self.stream, self.config, cache)
        caching, weights = self.config.enable_prefix_caching, self.config.tenant_weights
        blocks = BlockManager(cache, prefix_caching=caching, tenant_weights=weights)
        self.scheduler = Scheduler(self.config, blocks, listener=self.recorder, observer=Histories.of(self.config))
        self.requests: list[Request] = []
        self.num_steps = 0

    def run(self) -> str:
        """Live until all requests have ended. Returns the recording."""
        for step in range(100_000):
            now = step / 7
            if step < self._busy_steps and self.rng.random() < 0.3:
                self._arrive(now)
            self.scheduler.expire(now)
            batch = self.scheduler.schedule(
                now,
                pace=Pace(
                    budget=self.rng.choice([None, None, self.rng.randint(1, 100)]),
                    background_budget=self.rng.choice([None, self.rng.randint(0, 20)]),
                    order=self._order(),
                ),
            )
            self._end_a_request(now)
            if batch is not None:
                self.num_steps += 1
                self.scheduler.update(batch, [self._output(row.needs_sampling) for row in batch.rows], now + 0.1)
                self._stop_at_text(batch, now)
                if batch.num_tokens > 20:
                    self.scheduler.costs.seconds_per_token = self.rng.random()
            self.scheduler.check()
            if step > self._busy_steps and not self.scheduler.has_work:
                return self.stream.getvalue()
        raise AssertionError("it never ended")

    def _order(self) -> list[Request]:
        prompts = [r for r in (*self.scheduler._continuing(), *self.scheduler.waiting) if r.num_uncomputed_tokens > 1]
        prompts = [request for request in prompts if not request.is_background]
        return self.rng.sample(prompts, len(prompts)) if self.rng.random() < 0.5 else []

    def _arrive(self, now: float) -> None:
        rng = self.rng
        num_prompt = rng.randint(1, LONGEST - 1)
        # Few different beginnings, so that prefixes repeat.
        prompt = [rng.choice([10, 20])] * rng.randint(0, num_prompt) + [rng.randint(30, 99) for _ in range(num_prompt)]
        siblings: list[Request] = []
        tenant = rng.choice(["", "alice", "bob"])
        prompt_logprobs = rng.choice([None, None, 0])
        is_background = rng.random() < 0.3
        for index in range(rng.choice([1, 1, 1, 3])):
            siblings.append(
                Request(
                    request_id=f"request-{len(self.requests)}",
                    prompt_token_ids=prompt[:num_prompt],
                    params=SamplingParams(
                        priority=rng.randint(-1, 1),
                        timeout_ms=rng.choice([None, None, 5000]),
                        prompt_logprobs=prompt_logprobs,
                        is_background=is_background,
                    ),
                    max_num_tokens=num_prompt + rng.randint(1, LONGEST - num_prompt),
                    seed=0,
                    index=index,
                    stop_token_ids=frozenset({STOP}),
                    tenant=tenant,
                    parent=siblings[0] if siblings else None,
                    arrival_time=now,
                )
            )
            self.scheduler.add(siblings[-1])
        self.requests += siblings

    def _end_a_request(self, now: float) -> None:
        if self.requests and self.rng.random() < 0.1:
            self.scheduler.finish(self.rng.choice(self.requests), reason="abort", now=now)

    def _stop_at_text(self, batch: Batch, now: float) -> None:
        row = self.rng.choice(batch.rows) if batch.rows else None
        if row is not None and row.needs_sampling and self.rng.random() < 0.02:
            self.scheduler.finish(row.request, reason="stop", stop="END", now=now)

    def _output(self, needs_sampling: bool) -> RowOutput:
        if self.rng.random() < 0.01:
            return RowOutput(failure=RowFailure("x"))
        if not needs_sampling:
            return NO_OUTPUT
        return RowOutput((STOP if self.rng.random() < 0.02 else self.rng.randint(10, 12),))
