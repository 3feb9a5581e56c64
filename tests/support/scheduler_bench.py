"""Scheduler alone, whose model always samples one token, and requests for it."""

from dataclasses import dataclass, field

from beside_core import observer_of

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.batch import NO_OUTPUT, Batch, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.core.scheduler import Scheduler

TOKEN = 7


def request(
    num_prompt: int,
    num_new: int = 8,
    *,
    name: str = "r",
    priority: int = 0,
    stop: frozenset[int] = frozenset(),
    parent: Request | None = None,
    tokens: list[int] | None = None,
    tenant: str = "",
    timeout_ms: int | None = None,
    max_queue_ms: int | None = None,
    is_background: bool = False,
    cache_salt: str = "",
    ttft_ms: int | None = None,
    itl_ms: int | None = None,
) -> Request:
    tokens = tokens or [1] * num_prompt
    return Request(
        request_id=name,
        prompt_token_ids=tokens,
        params=SamplingParams(
            priority=priority, timeout_ms=timeout_ms, max_queue_ms=max_queue_ms, is_background=is_background,
            cache_salt=cache_salt, ttft_ms=ttft_ms, itl_ms=itl_ms,
        ),
        max_num_tokens=len(tokens) + num_new,
        seed=0,
        stop_token_ids=stop,
        parent=parent,
        tenant=tenant,
    )  # fmt: skip


@dataclass
class Bench:
    """Scheduler whose model always samples TOKEN, checked after every move."""

    scheduler: Scheduler
    now: float = 0.0
    batches: list[Batch] = field(default_factory=list)

    @classmethod
    def make(cls, *, num_blocks: int = 1000, num_host_blocks: int = 0, **settings: object) -> "Bench":
        config = ResolvedConfig.of(
            EngineConfig(**{"block_size": 4, "enable_prefix_caching": False, **settings}), device="cpu"
        )  # type: ignore[arg-type]
        cache = CacheSpec(num_blocks, config.block_size, num_host_blocks)
        caching, weights = config.enable_prefix_caching, config.tenant_weights
        blocks = BlockManager(cache, prefix_caching=caching, tenant_weights=weights)
        return cls(Scheduler(config, blocks, observer=observer_of(config)))

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)

    def step(self) -> list[tuple[str, int, int]]:
        """Run a step. Returns its rows as (name, from, to)."""
        self.now += 1.0
        batch = self.scheduler.schedule(self.now)
        if batch is None:
            return []
        token = RowOutput((TOKEN,))
        self.scheduler.update(batch, [token if row.needs_sampling else NO_OUTPUT for row in batch.rows], self.now)
        self.scheduler.check()
        self.batches.append(batch)
        return [(row.request.request_id, row.start, row.end) for row in batch.rows]

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()
        self.assert_empty()

    def assert_empty(self) -> None:
        blocks = self.scheduler.blocks
        assert blocks.device.num_used_blocks == 0
        assert blocks.host is None or blocks.host.num_used_blocks == 0
