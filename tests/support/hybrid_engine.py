"""HybridEngine: an EngineCore of a model with recurrent layers, over the fake model and a virtual clock."""

from beside_core import OutputProcessor
from hybrid_world import HybridModel, hybrid_scheduler

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.block_manager import CacheSpec
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.core.step_pipeline import StepPipeline
from splitfuse.engine.execution.models.state_slots import StateSpec
from splitfuse.engine.extras.hybrid.request_states import RequestStates


class HybridEngine:
    """Engine that answers one batch of prompts after the other, and checks its invariants after every step."""

    def __init__(self, *, num_blocks: int = 2000, num_live: int = 32, num_checkpoints: int = 100, **config: object):
        self.config = ResolvedConfig.of(
            EngineConfig(**{"max_num_batched_tokens": 512, "max_num_seqs": 16, **config}), device="cpu"
        )  # type: ignore[arg-type]
        self.spec = StateSpec(num_live, num_checkpoints)
        cache = CacheSpec(num_blocks, self.config.block_size)
        self._clock = 0.0
        scheduler = hybrid_scheduler(self.config, cache, self.spec)
        (states,) = scheduler.blocks.companions
        assert isinstance(states, RequestStates)
        self.blocks, self.states = scheduler.blocks, states
        core = EngineCore(self.config, scheduler, OutputProcessor(None), clock=lambda: self._clock)
        self.model = HybridModel(self.spec, num_blocks=num_blocks, num_host_blocks=0, block_size=self.config.block_size)
        self.pipeline = StepPipeline(core, self.model)
        self._num_requests = 0

    def request(self, prompt: list[int], num_new: int, *, tenant: str = "", n: int = 1) -> list[Request]:
        """Make the requests of a prompt with n outputs, and queue them."""
        requests: list[Request] = []
        for index in range(n):
            requests.append(
                Request(
                    request_id=f"r{self._num_requests}", prompt_token_ids=prompt, params=SamplingParams(n=n),
                    max_num_tokens=len(prompt) + num_new, seed=index, index=index, tenant=tenant,
                    parent=requests[0] if requests else None,
                )
            )  # fmt: skip
        self._num_requests += 1
        self.pipeline.core.add(requests)
        return requests

    def run(self) -> None:
        """Run all requests to their ends."""
        while self.pipeline.has_work:
            self._clock += 0.01
            self.pipeline.step()
            self.pipeline.core.scheduler.check()

    def answer(self, prompt: list[int], num_new: int, **options: object) -> Request:
        """Answer a prompt, alone. The request has its tokens and the number of those that were cached."""
        (request,) = self.request(prompt, num_new, **options)  # type: ignore[arg-type]
        self.run()
        assert request.finish_reason == "length"
        return request
