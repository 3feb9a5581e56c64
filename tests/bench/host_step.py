"""Host work of a step that is decided while another one runs: what has to fit into the time of a step on the device.

    python tests/bench/host_step.py

The model is none: what a GPU would do is left out, what is given to it is not.
"""

import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.core import EngineCore
from splitfuse.engine.device import ImmediateStream
from splitfuse.engine.output_processor import OutputProcessor
from splitfuse.engine.request import Request
from splitfuse.engine.runner.async_runner import AsyncRunner
from splitfuse.engine.sampling_params import SamplingParams
from splitfuse.engine.scheduler.block_manager import CacheSpec
from splitfuse.engine.step_pipeline import StepPipeline

CONTEXT, NUM_STEPS, VOCAB_SIZE = 1024, 200, 8


class NoModel:
    def forward(self, inputs: Any, cache: Any) -> torch.Tensor:
        return torch.zeros(len(inputs.logits_indices), 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.expand(-1, VOCAB_SIZE).clone()


def measure(num_seqs: int, params: SamplingParams) -> dict[str, float]:
    """Milliseconds per decode step of so many rows at a context of 1,024: medians of each part."""
    config = EngineConfig(max_num_seqs=num_seqs, max_num_batched_tokens=8192, enable_prefix_caching=False)
    num_blocks = num_seqs * (CONTEXT // config.block_size + 32)
    core = EngineCore(config, CacheSpec(num_blocks, config.block_size), OutputProcessor(None), max_steps_in_flight=2)
    launcher = AsyncRunner(
        NoModel(),
        SimpleNamespace(block_size=config.block_size),  # type: ignore[arg-type]
        ImmediateStream(),
        device=torch.device("cpu"),
        max_num_tokens=8192,
        max_num_seqs=num_seqs,
        max_model_len=8192,
    )
    pipeline = StepPipeline(core, SimpleNamespace(), launcher)  # type: ignore[arg-type]
    for index in range(num_seqs):
        prompt, length = list(range(CONTEXT)), CONTEXT + 500
        core.add(
            [Request(request_id=str(index), prompt_token_ids=prompt, params=params, max_num_tokens=length, seed=index)]
        )
    parts: dict[str, list[float]] = {"schedule": [], "stage, launch, collect": [], "update": []}
    while len(parts["update"]) < NUM_STEPS:
        times = [time.perf_counter()]
        work = pipeline.schedule()
        times.append(time.perf_counter())
        assert work is not None
        outputs = pipeline.run(work)
        times.append(time.perf_counter())
        pipeline.update(work, outputs)
        times.append(time.perf_counter())
        if work.launch is not None and work.launch.scheduled.batch.num_decode_tokens == num_seqs:
            for part, begin, end in zip(parts.values(), times, times[1:], strict=False):
                part.append((end - begin) * 1e3)
    return {name: statistics.median(times) for name, times in parts.items()}


if __name__ == "__main__":
    with torch.inference_mode():
        for num_seqs in (1, 32, 64, 256):
            for name, params in {
                "greedy": SamplingParams(temperature=0, max_tokens=500, ignore_eos=True),
                "top-p": SamplingParams(top_p=0.9, max_tokens=500, ignore_eos=True),
            }.items():
                found = measure(num_seqs, params)
                shown = ", ".join(f"{part} {milliseconds:.2f}" for part, milliseconds in found.items())
                print(f"{num_seqs:4} rows, {name:6}: {sum(found.values()):.2f} ms ({shown})", flush=True)
