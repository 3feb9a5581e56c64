"""An LLM whose launcher works on a simulated stream, and whether its outputs are those of plain steps."""

import random
from typing import Any

import pytest
import torch
from random_schedule import Arrival, random_llm, run_schedule
from simulated_stream import SimulatedStream
from tiny_models import VOCAB_SIZE

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.batch import Batch, Moves, RowOutput
from splitfuse.engine.runner.async_runner import AsyncRunner
from splitfuse.engine.runner.cuda_graphs import GraphCapturer, graph_sizes

SAMPLING_FIELDS: list[dict[str, Any]] = [
    *[{"temperature": 0}, {}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05}, {"top_k": 40, "top_p": 0.9}],
    *[{"n": 2}, {"stop_token_ids": list(range(20, 40))}],
]


class InOrder:
    """A runner whose work comes after all that the stream was given: there is one queue."""

    def __init__(self, runner: Any, stream: SimulatedStream) -> None:
        self._runner, self._stream = runner, stream

    def move(self, moves: Moves) -> None:
        self._stream.synchronize()
        self._runner.move(moves)

    def run(self, batch: Batch) -> list[RowOutput]:
        self._stream.synchronize()
        return list(self._runner.run(batch))


def random_arrivals(rng: random.Random) -> list[Arrival]:
    sampled_on_host: list[dict[str, Any]] = [{"repetition_penalty": 1.3}] if rng.random() < 0.3 else []
    arrivals = []
    for index in range(24):
        prompt = [rng.randrange(20, VOCAB_SIZE) for _ in range(rng.randint(1, 60))]
        if arrivals and rng.random() < 0.3:
            prompt = rng.choice(arrivals).prompt[: rng.randint(1, 60)]
        params = SamplingParams(
            seed=index, max_tokens=rng.randint(1, 20), **rng.choice(SAMPLING_FIELDS + sampled_on_host)
        )
        abort_after = rng.randint(0, 12) if rng.random() < 0.2 else None
        arrivals.append(Arrival(prompt, params, at_step=rng.randint(0, 40), abort_after=abort_after))
    return arrivals


def launcher_of(llm: LLM) -> AsyncRunner:
    launcher = llm.pipeline._launcher
    assert isinstance(launcher, AsyncRunner)
    return launcher


def compare(folder: str, seed: int, capturer: GraphCapturer | None = None) -> tuple[int, int]:
    """Tokens of a random schedule, overlapped, against those of plain steps. Gives preemptions and steps launched."""
    rng = random.Random(seed)
    plain = random_llm(rng, folder, max_tokens_of_one=80, block_sizes=(4, 16))
    stream = SimulatedStream(rng, laziness=rng.choice([0.1, 0.5, 0.9, 1.0]))
    settings = {
        name: getattr(plain.config, name)
        for name in ("dtype", "device", "block_size", "max_num_batched_tokens", "long_prefill_token_threshold")
        + (
            "max_num_seqs",
            "num_kv_blocks",
            "batching_policy",
            "enable_prefix_caching",
            "swap_space",
            "preemption_mode",
            "speculative_config",
        )
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("splitfuse.engine.runner.model_runner.stream_of", lambda device: stream)
        llm = LLM(folder, async_scheduling=True, **settings)
    runner = llm.pipeline._runner
    runner._runner = InOrder(runner._runner, stream)
    if capturer is not None:
        sizes = graph_sizes(llm.config.max_num_seqs)
        launcher_of(llm).use_graphs(capturer, sizes=sizes, hidden_size=64, dtype=torch.float32)
    arrivals, expected = random_arrivals(random.Random(seed)), random_arrivals(random.Random(seed))
    for arrival in expected:
        arrival.abort_after = None
    run_schedule(plain, expected)
    num_preemptions = run_schedule(llm, arrivals)
    for ours, theirs in zip(arrivals, expected, strict=True):
        for output, wanted in zip(ours.outputs, theirs.outputs, strict=True):
            tokens = output.token_ids
            assert tokens == wanted.token_ids[: len(tokens)], f"{ours.params}"
            assert ours.abort_after is not None or output.finish_reason == wanted.finish_reason
            assert ours.abort_after is not None or len(tokens) == len(wanted.token_ids)
    return num_preemptions, launcher_of(llm).buffers._num_acquired
