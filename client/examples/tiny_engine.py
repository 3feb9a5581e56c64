"""The engine's step by hand: schedule, run, update. `python tiny_engine.py [MODEL]`"""

import sys
import time
import uuid

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.core.block_manager import BlockManager
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.execution.models.resolved_model import resolve
from splitfuse.engine.formats.checkpoint import model_folder
from splitfuse.engine.language.text.tokenizer import Tokenizer
from splitfuse.engine.serving.loading import load_runner


class Engine:
    def __init__(self, model: str = "demo", *, max_num_batched_tokens: int = 512) -> None:
        config = EngineConfig(model=model, max_num_batched_tokens=max_num_batched_tokens)
        folder = model_folder(config, model)
        resolved = resolve(config, folder)
        self.runner = load_runner(resolved)
        self.tokenizer = Tokenizer(folder)
        blocks = BlockManager(self.runner.loaded.cache, prefix_caching=True)
        self.scheduler = Scheduler(resolved.config, blocks)

    def add(self, prompt: str, params: SamplingParams) -> Request:
        """Queue a prompt. The `token_ids` of its request grow with each step until the request `is_finished`."""
        token_ids = self.tokenizer.encode(prompt)
        request = Request(
            request_id=uuid.uuid4().hex,
            prompt_token_ids=token_ids,
            params=params,
            max_num_tokens=min(len(token_ids) + (params.max_tokens or 64), self.runner.loaded.max_model_len),
            seed=params.seed or 0,
            stop_token_ids=frozenset(self.runner.loaded.model_config.eos_token_ids),
        )
        self.scheduler.add(request)
        return request

    def step(self) -> str:
        """Schedule, run, update, while the scheduler `has_work`. Return a line about the batch."""
        batch = self.scheduler.schedule(time.monotonic())
        assert batch is not None
        self.runner.move(batch.moves)
        self.scheduler.update(batch, self.runner.run(batch), time.monotonic())
        return ", ".join(f"request {row.request.arrival_order}: {row.num_tokens} tokens" for row in batch.rows)

    def text(self, request: Request) -> str:
        """Return the output of a request so far."""
        return self.tokenizer.decode(request.token_ids[request.num_prompt_tokens :])


if __name__ == "__main__":
    engine = Engine(*sys.argv[1:], max_num_batched_tokens=16)  # the long prompt comes in chunks beside decodes
    greedy = SamplingParams(temperature=0, max_tokens=8)
    requests = [engine.add("Once upon a time", greedy), engine.add("The little dog ran home. " * 8, greedy)]
    while engine.scheduler.has_work:
        print(engine.step())
    for request in requests:
        print(f"{request.arrival_order}: {engine.text(request)!r}")
