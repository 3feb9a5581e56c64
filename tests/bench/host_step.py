"""Host work of a step that is planned while another one runs: it must fit into the time of a step on the device.

    python tests/bench/host_step.py [256]

There is no model: a GPU's work is left out, the launches are not. Steps replay graphs that do nothing, and
the time is the thread's own, so a busy machine counts little.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.core.step_pipeline import StepPipeline
from splitfuse.engine.device import ImmediateStream
from splitfuse.engine.execution.runner.async_runner import AsyncRunner
from splitfuse.engine.execution.runner.cuda_graphs import graph_sizes
from splitfuse.engine.serving.output_processor import OutputProcessor

CONTEXT, NUM_STEPS, VOCAB_SIZE = 1024, 200, 8
BUDGET = 2048
PARTS = ("schedule", "stage, launch, collect", "update")
PARAMS = {
    "greedy": {"temperature": 0},
    "top-p": {"top_p": 0.9},
    "penalty": {"top_p": 0.9, "presence_penalty": 0.5},
    "logprobs": {"top_p": 0.9, "logprobs": 5},
}


class NoModel:
    config = SimpleNamespace(
        vocab_size=VOCAB_SIZE,
        hidden_size=4096,
        intermediate_size=14336,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        hf_config={},
    )

    def forward(self, inputs: Any, cache: Any) -> torch.Tensor:
        return torch.zeros(len(inputs.logits_indices), 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.expand(-1, VOCAB_SIZE).clone()


class NoGraph:
    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def make_pipeline(num_seqs: int) -> StepPipeline:
    config = ResolvedConfig.of(
        EngineConfig(max_num_seqs=num_seqs, max_num_batched_tokens=BUDGET, enable_prefix_caching=False), device="cpu"
    )
    num_blocks = num_seqs * (CONTEXT // config.block_size + 40)
    blocks = BlockManager(CacheSpec(num_blocks, config.block_size), prefix_caching=False)
    core = EngineCore(config, Scheduler(config, blocks, max_steps_in_flight=2), OutputProcessor(None))
    launcher = AsyncRunner(
        NoModel(),
        SimpleNamespace(block_size=config.block_size),  # type: ignore[arg-type]
        ImmediateStream(),
        device=torch.device("cpu"),
        max_num_tokens=BUDGET,
        max_num_seqs=num_seqs,
        max_model_len=8192,
    )
    launcher.use_graphs(NoGraph(), sizes=graph_sizes(num_seqs), hidden_size=1, dtype=torch.float32)
    launcher.capture_graphs()
    return StepPipeline(core, SimpleNamespace(), launcher)  # type: ignore[arg-type]


class Arrivals:
    """Arrivals that keep the queue full at a context of 1,024; for mixed steps outputs end at different times."""

    def __init__(self, core: EngineCore, num_seqs: int, fields: dict[str, Any], *, is_mixed: bool) -> None:
        self._core, self._num_seqs, self._fields, self._is_mixed = core, num_seqs, fields, is_mixed
        self._choose, self._count = random.Random(1), 0

    def refill(self) -> None:
        while self._core.num_unfinished < self._num_seqs:
            self._count += 1
            length = self._choose.randint(50, 500) if self._is_mixed else 500
            params = SamplingParams(max_tokens=length, ignore_eos=True, **self._fields)
            request = Request(
                request_id=str(self._count),
                prompt_token_ids=list(range(CONTEXT)),
                params=params,
                max_num_tokens=CONTEXT + length,
                seed=self._count,
            )
            self._core.add([request])


def measure(num_seqs: int, fields: dict[str, Any], *, is_mixed: bool) -> dict[str, float]:
    """Return the thread's milliseconds per step of about that many rows, medians by part.

    A step is of decodes alone, or has parts of prompts up to the token budget beside them.
    """
    pipeline = make_pipeline(num_seqs)
    arrivals = Arrivals(pipeline.core, num_seqs, fields, is_mixed=is_mixed)
    parts: dict[str, list[float]] = {name: [] for name in PARTS}
    while len(parts["update"]) < NUM_STEPS:
        arrivals.refill()
        times = [time.thread_time()]
        work = pipeline.schedule()
        times.append(time.thread_time())
        assert work is not None
        outputs = pipeline.run(work)
        times.append(time.thread_time())
        pipeline.update(work, outputs)
        times.append(time.thread_time())
        batch = None if work.launch is None else work.launch.scheduled.batch
        if batch is None or len(batch.rows) < 0.95 * num_seqs or is_mixed != (batch.num_tokens > len(batch.rows)):
            continue
        for part, begin, end in zip(parts.values(), times, times[1:], strict=False):
            part.append((end - begin) * 1e3)
    return {name: statistics.median(times) for name, times in parts.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)  # like with a GPU, where tensors cost no host threads
    with torch.inference_mode():
        for num_seqs in map(int, sys.argv[1:] or (1, 32, 64, 256)):
            for is_mixed in (False, True)[: 1 + (num_seqs > 1)]:
                for name, fields in PARAMS.items():
                    found = measure(num_seqs, fields, is_mixed=is_mixed)
                    shown = ", ".join(f"{part} {milliseconds:.2f}" for part, milliseconds in found.items())
                    kind = "mixed" if is_mixed else "decode"
                    print(f"{num_seqs:4} rows, {kind:6} {name:8}: {sum(found.values()):.2f} ms ({shown})", flush=True)
