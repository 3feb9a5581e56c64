"""Simulation: the steps of a real engine under a virtual clock, with a CostModel in place of the model.

Output lengths come from the load, so nothing ends early. Its requests have arrivals, and the times of their tokens.
`record` writes it like a server's run.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...config import ResolvedConfig
from ...core.batch import NO_OUTPUT, Batch, Moves, Progress, RowOutput
from ...core.block_manager import BlockManager, CacheSpec
from ...core.cost_model import CostModel
from ...core.engine_core import EngineCore
from ...core.outputs import OutputDelta
from ...core.ports import Decoded
from ...core.request import Request
from ...core.sampling_params import SamplingParams
from ...core.scheduler import Scheduler
from ...core.step_pipeline import StepPipeline
from ...serving.output_processor import OutputProcessor
from ..deadlines.pacer import DeadlinePacer
from . import RecordSettings
from .recording import Recorder


@dataclass(frozen=True, slots=True)
class Arrival:
    """Request that will come `arrival_s` seconds after the start.

    `prompt` returns its token ids after its arrival. Without `prompt` the contents are unknown; a prefix cache needs
    them.
    """

    arrival_s: float
    prompt_len: int
    output_len: int
    prompt: Callable[[], Sequence[int]] | None = None
    tenant: str = ""


@dataclass(slots=True)
class Served:
    """Times of a request's arrival and of its tokens, in simulated seconds."""

    prompt_len: int
    arrival_s: float
    token_times: list[float] = field(default_factory=list)


_TOKEN = RowOutput((1,))
_DELTA = OutputDelta("", 0, "", (1,))
_NOTHING_DECODED = Decoded()
_PARAMS = SamplingParams()


class _SimulatedRunner:
    """Runner that only advances the clock."""

    def __init__(self, cost: CostModel, swap_s: float) -> None:
        self.now = 0.0
        self.num_tokens = 0  # tokens of all passes
        self._cost = cost
        self._swap_s = swap_s

    def move(self, moves: Moves) -> None:
        self.now += self._swap_s * (len(moves.swap_out) + len(moves.swap_in))

    def run(self, batch: Batch) -> list[RowOutput]:
        num_tokens = batch.num_tokens
        self.num_tokens += num_tokens
        self.now += self._cost.predict(num_tokens, sum(row.start for row in batch.rows))
        return [_TOKEN if row.needs_sampling else NO_OUTPUT for row in batch.rows]


class _TokenTimes(OutputProcessor):
    """Output processor that notes the time of each token instead of decoding it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(None)
        self.num_cached_tokens = 0
        self._clock = clock
        self._served: dict[Request, Served] = {}

    def serve(self, request: Request, served: Served) -> None:
        self._served[request] = served

    def decode(self, progress: Progress) -> Decoded:
        times = self._served[progress.request].token_times
        if not times:
            self.num_cached_tokens += progress.request.num_cached_tokens
        times.append(self._clock())
        return _NOTHING_DECODED

    def delta(self, progress: Progress, decoded: Decoded) -> OutputDelta:
        return _DELTA

    def forget(self, request: Request) -> None:
        del self._served[request]


class Simulation:
    """Simulation of one run. `served` fills up as requests come; figures are ready when `run` returns."""

    def __init__(
        self,
        config: ResolvedConfig,
        *,
        num_blocks: int,
        cost: CostModel,
        num_host_blocks: int = 0,
        swap_s: float = 0.0,
    ) -> None:
        """Create the engine. `swap_s`: seconds to copy a block to the host or back. Raises ConfigError."""
        self.config = config
        self.cost = cost
        self._runner = _SimulatedRunner(cost, swap_s)
        self._times = _TokenTimes(lambda: self.now)
        cache = CacheSpec(num_blocks, config.block_size, num_host_blocks, swap_s)
        blocks = BlockManager(cache, prefix_caching=config.enable_prefix_caching, tenant_weights=config.tenant_weights)
        recorder = Recorder.open(config, cache) if config.section(RecordSettings).record else None
        scheduler = Scheduler(config, blocks, listener=recorder)
        self.pacer = DeadlinePacer(config, cost)
        self._core = EngineCore(
            config, scheduler, self._times, cost_model=cost, pacer=self.pacer, clock=lambda: self.now
        )
        self._pipeline = StepPipeline(self._core, self._runner)
        self.scheduler = self._core.scheduler
        self.scheduler.costs.seconds_per_token = cost.predict(1, 0) - cost.predict(0, 0)
        self.served: list[Served] = []
        self.num_refused = 0  # requests longer than the pool; the input processor would answer with an error
        self.num_steps = 0
        self.wall_s = 0.0
        self._num_blocks = num_blocks
        self._waste = 0.0
        self._num_slots_allocated = 0
        self._num_slots_used = 0

    @property
    def now(self) -> float:
        """Simulated seconds since the start."""
        return self._runner.now

    @property
    def num_tokens(self) -> int:
        """Tokens of all forward passes."""
        return self._runner.num_tokens

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return self._times.num_cached_tokens

    def run(self, load: Sequence[Arrival], *, num_clients: int | None = None) -> None:
        """Serve the load to its end: each request at its time, or in a closed loop of `num_clients`."""
        upcoming = deque(load)
        start = time.perf_counter()
        while True:
            if upcoming:
                self._add_arrivals(upcoming, num_clients)
            if self._pipeline.step().stats is not None:
                self.num_steps += 1
                self._measure_waste()
            elif upcoming:
                self._runner.now = max(self.now, upcoming[0].arrival_s)
            else:
                break
        self.wall_s += time.perf_counter() - start
        assert not self.scheduler.has_work, "the scheduler is stuck"
        self.scheduler.listeners.clear()  # the end of a recording

    def _add_arrivals(self, upcoming: deque[Arrival], num_clients: int | None) -> None:
        if num_clients is None:
            while upcoming and upcoming[0].arrival_s <= self.now:
                request = upcoming.popleft()
                self._add(request, request.arrival_s)
        else:
            while upcoming and self._core.num_unfinished < num_clients:
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
        request = Request(
            request_id=name,
            prompt_token_ids=token_ids,
            params=_PARAMS,
            max_num_tokens=max_num_tokens,
            seed=0,
            arrival_time=arrival_s,
            tenant=load.tenant,
        )
        self.served.append(Served(load.prompt_len, arrival_s))
        self._times.serve(request, self.served[-1])
        self._core.add([request])

    @property
    def kv_waste(self) -> float:
        """Share of the allocated cache that holds no tokens, mean over the steps."""
        return self._waste / self.num_steps if self.num_steps else 0.0

    @property
    def kv_waste_by_size(self) -> float:
        """Share of the allocated cache that holds no tokens, with steps weighted by their allocated tokens."""
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
