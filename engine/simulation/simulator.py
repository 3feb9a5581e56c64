"""Simulation: the real scheduler under a virtual clock, with a CostModel where the model would be.

Output lengths come from the load, so nothing ends early. Knows no files.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import TextIO

from ..batch import Batch, RowResult, SampledToken
from ..config import EngineConfig
from ..outputs import StepStats
from ..request import Request
from ..sampling_params import SamplingParams
from ..scheduler.budget import step_budget
from ..scheduler.cost_model import CostModel
from .recording import make_scheduler
from .requests import Arrival, Served

_TOKEN = SampledToken(1)
_PARAMS = SamplingParams()


class _SimulatedRequest(Request):
    """A request that knows where to note the times of its tokens."""

    __slots__ = ("token_times",)

    token_times: list[float]


class Simulation:
    """One run. `served` fills up as requests come; figures are ready when `run` returns."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        num_blocks: int,
        cost: CostModel,
        num_host_blocks: int = 0,
        swap_s: float = 0.0,
        log: TextIO | None = None,
    ) -> None:
        """`swap_s`: seconds to copy one block to the host or back. `log`: where to write a line per step."""
        self.config = config
        self.cost = cost
        self.scheduler = make_scheduler(config, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
        self.scheduler.costs.seconds_per_block = swap_s
        self.scheduler.costs.seconds_per_token = cost.predict(1, 0) - cost.predict(0, 0)
        self.now = 0.0
        self.served: list[Served] = []
        self.num_refused = 0  # longer than the whole pool, which intake answers with an error
        self.num_steps = 0
        self.num_tokens = 0  # in all passes
        self.num_cached_tokens = 0
        self.wall_s = 0.0
        self._num_blocks = num_blocks
        self._waste = 0.0
        self._num_slots_allocated = 0
        self._num_slots_used = 0
        self._num_preemptions_logged = 0
        self._swap_s = swap_s
        self._target_s = None if config.target_itl_ms is None else config.target_itl_ms / 1000
        self._log = log

    def run(self, load: Sequence[Arrival], *, num_clients: int | None = None) -> None:
        """Serve the load to its end: each request at its time, or in a closed loop of so many clients."""
        upcoming = deque(load)
        start = time.perf_counter()
        while True:
            if upcoming:
                self._add_arrivals(upcoming, num_clients)
            batch = self.scheduler.schedule(self.now, budget=None if self._target_s is None else self._budget())
            if batch is not None:
                self._step(batch)
            elif upcoming:
                self.now = max(self.now, upcoming[0].arrival_s)
            else:
                break
        self.wall_s += time.perf_counter() - start
        assert not self.scheduler.has_work, "the scheduler is stuck"

    def _add_arrivals(self, upcoming: deque[Arrival], num_clients: int | None) -> None:
        scheduler = self.scheduler
        if num_clients is None:
            while upcoming and upcoming[0].arrival_s <= self.now:
                request = upcoming.popleft()
                self._add(request, request.arrival_s)
        else:
            while upcoming and len(scheduler.running) + len(scheduler.waiting) < num_clients:
                self._add(upcoming.popleft(), self.now)

    def _add(self, load: Arrival, arrival_s: float) -> None:
        name = str(len(self.served) + self.num_refused)
        max_num_tokens = load.prompt_len + load.output_len
        if max_num_tokens > self._num_blocks * self.config.block_size:
            self.num_refused += 1
            return
        if self.config.enable_prefix_caching:
            assert load.prompt is not None, "requests without contents would share their blocks"
            token_ids = list(load.prompt())
        else:
            token_ids = [0] * load.prompt_len
        request = _SimulatedRequest(
            request_id=name,
            prompt_token_ids=token_ids,
            params=_PARAMS,
            max_num_tokens=max_num_tokens,
            seed=0,
            arrival_time=arrival_s,
        )
        served = Served(load.prompt_len, arrival_s)
        request.token_times = served.token_times
        self.served.append(served)
        self.scheduler.add(request)

    def _budget(self) -> int | None:
        assert self._target_s is not None
        return step_budget(
            self.cost,
            self.scheduler.running,
            target_s=self._target_s,
            maximum=self.config.max_num_batched_tokens,
            block_size=self.config.block_size,
        )

    def _step(self, batch: Batch) -> None:
        num_tokens = context = 0
        results: list[RowResult] = []
        sampled: list[_SimulatedRequest] = []
        for row in batch.rows:
            num_tokens += row.num_tokens
            context += row.start
            if row.samples:
                results.append(_TOKEN)
                sampled.append(row.request)  # type: ignore[arg-type]  # all requests here are ours
            else:
                results.append(None)
        start = self.now
        moves = batch.moves
        num_swaps = len(moves.swap_out) + len(moves.swap_in)
        self.now = now = start + self.cost.predict(num_tokens, context) + self._swap_s * num_swaps
        if self._log is not None:
            self._write(batch, sampled, start)
        for request in sampled:
            if not request.token_times:
                self.num_cached_tokens += request.num_cached_tokens
            request.token_times.append(now)
        self.scheduler.update(batch, results, now)
        self.num_steps += 1
        self.num_tokens += num_tokens
        self._measure_waste()

    @property
    def kv_waste(self) -> float:
        """Share of the allocated cache that holds no tokens, mean over the steps."""
        return self._waste / self.num_steps if self.num_steps else 0.0

    @property
    def kv_waste_by_size(self) -> float:
        """The same where a step counts by what it has allocated: unused over allocated tokens, both summed."""
        return 1 - self._num_slots_used / self._num_slots_allocated if self._num_slots_allocated else 0.0

    def _measure_waste(self) -> None:
        num_blocks = num_used = 0
        for request in self.scheduler.running:
            num_blocks += len(request.block_table)
            num_used += request.num_computed_tokens
        if num_blocks:
            num_allocated = num_blocks * self.config.block_size
            self._waste += 1 - num_used / num_allocated
            self._num_slots_allocated += num_allocated
            self._num_slots_used += num_used

    def _write(self, batch: Batch, sampled: Sequence[_SimulatedRequest], start: float) -> None:
        assert self._log is not None
        num_decode_tokens = batch.num_decode_tokens
        running = self.scheduler.running
        stats = StepStats(
            step=batch.step,
            time=self.now,
            duration=self.now - start,
            num_prefill_tokens=batch.num_tokens - num_decode_tokens,
            num_decode_tokens=num_decode_tokens,
            num_running=len(running),
            num_waiting=len(self.scheduler.waiting),
            num_used_blocks=len({block for request in running for block in request.block_table}),
            num_blocks=self._num_blocks,
            num_preempted=self.scheduler.num_preemptions - self._num_preemptions_logged,
            itls=tuple(self.now - request.token_times[-1] for request in sampled if request.token_times),
        )
        self._num_preemptions_logged = self.scheduler.num_preemptions
        print(stats, file=self._log)
