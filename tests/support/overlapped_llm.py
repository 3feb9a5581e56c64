"""LLM whose launcher works on a simulated stream, compared with an LLM of plain steps."""

import random
from typing import Any

import pytest
import torch
from random_schedule import Arrival, random_llm, run_schedule
from simulated_stream import SimulatedStream
from tiny_models import VOCAB_SIZE

from splitfuse.engine import LLM, CompletionOutput, SamplingParams
from splitfuse.engine.core.batch import Batch, Moves, RowOutput
from splitfuse.engine.execution.runner.async_runner import AsyncRunner
from splitfuse.engine.execution.runner.cuda_graphs import GraphCapturer, graph_sizes
from splitfuse.engine.language.chat.reasoning_parser import ReasoningFormat

_OPEN = ReasoningFormat(openings=("<!--",), closings=("-->",), is_open=True)
SAMPLING_FIELDS: list[dict[str, Any]] = [
    *[{"temperature": 0}, {}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.05}, {"top_k": 40, "top_p": 0.9}],
    *[{"n": 2}, {"stop_token_ids": list(range(20, 40))}],
]
# Fields that need more than temperature and filters: earlier tokens, logits, or the host while a step runs.
SPECIAL_FIELDS: list[dict[str, Any]] = [
    *[
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.7},
        {"frequency_penalty": -0.4},
        {"repetition_penalty": 0.01},
    ],
    {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2, "temperature": 0},
    *[{"min_tokens": 5}, {"min_tokens": 3, "stop_token_ids": list(range(20, 200))}],
    *[{"logit_bias": {30: 9.0, 31: 8.5, 32: -100.0}}, {"allowed_token_ids": [40, 41, 42, 97]}],
    *[{"bad_words": ["a", "ab", "bcd"], "allowed_token_ids": [97, 98, 99, 100, 101]}, {"logprobs": 0}, {"logprobs": 3}],
    *[{"logprobs": 2, "logit_bias": {30: 9.0}, "temperature": 0}, {"prompt_logprobs": 2, "logprobs": 1}],
    {"structured_outputs": {"regex": "[a-f]{2,9}"}},
    {"structured_outputs": {"regex": "[a-z]{3,}"}, "logprobs": 2},
    {"structured_outputs": {"json_object": True}, "ignore_eos": True, "logprobs": 1},
    {"structured_outputs": {"choice": ["yes", "no"]}, "presence_penalty": 1.0},
    *[{"thinking_budget": budget, "reasoning_format": _OPEN, "logprobs": 1} for budget in (0, 4)],
    {"thinking_budget": 2, "reasoning_format": _OPEN, "structured_outputs": {"regex": "[a-z]{0,9}-->[0-9]{3}"}},
]


class InOrder:
    """Runner whose work comes after all earlier work of the stream: there is one queue."""

    def __init__(self, runner: Any, stream: SimulatedStream) -> None:
        self._runner, self._stream = runner, stream

    def move(self, moves: Moves) -> None:
        self._stream.synchronize()
        self._runner.move(moves)

    def run(self, batch: Batch) -> list[RowOutput]:
        self._stream.synchronize()
        return list(self._runner.run(batch))


def random_arrivals(rng: random.Random) -> list[Arrival]:
    special = SPECIAL_FIELDS if rng.random() < 0.5 else []
    arrivals = []
    for index in range(24):
        prompt = [rng.randrange(20, VOCAB_SIZE) for _ in range(rng.randint(1, 60))]
        if arrivals and rng.random() < 0.3:
            prompt = rng.choice(arrivals).prompt[: rng.randint(1, 60)]
        max_tokens = rng.randint(1, 20)
        params = SamplingParams(
            seed=index, max_tokens=max_tokens, **within(rng.choice(SAMPLING_FIELDS + special), max_tokens)
        )
        abort_after = rng.randint(0, 12) if rng.random() < 0.2 else None
        arrivals.append(Arrival(prompt, params, at_step=rng.randint(0, 40), abort_after=abort_after))
    return arrivals


def within(fields: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    """Return the fields for an output of that many tokens."""
    return {**fields, "min_tokens": min(fields.get("min_tokens", 0), max_tokens)}


def same_logprobs(ours: CompletionOutput, theirs: CompletionOutput) -> bool:
    """True if tokens and ranks are equal, and numbers nearly, up to the end of the shorter output."""
    if ours.logprobs is None or theirs.logprobs is None:
        return not ours.token_ids or not theirs.token_ids or ours.logprobs is theirs.logprobs
    return all(
        (a.token_id, a.rank, [id for id, _ in a.top]) == (b.token_id, b.rank, [id for id, _ in b.top])
        and [a.logprob, *(x for _, x in a.top)] == pytest.approx([b.logprob, *(x for _, x in b.top)], abs=1e-4)
        for a, b in zip(ours.logprobs, theirs.logprobs, strict=False)
    )


def launcher_of(llm: LLM) -> AsyncRunner:
    launcher = llm.engine.pipeline.launcher
    assert isinstance(launcher, AsyncRunner)
    return launcher


def overlapped_llm(folder: str, stream: SimulatedStream, **settings: Any) -> LLM:
    """Return an LLM whose steps are launched on this stream."""
    stream.context = torch.inference_mode  # like the step's thread, in which a GPU's work is queued
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("splitfuse.engine.execution.runner.model_runner.stream_of", lambda device: stream)
        llm = LLM(folder, async_scheduling=True, **settings)
    runner = llm.engine.pipeline._runner
    runner._runner = InOrder(runner._runner, stream)
    return llm


def compare(folder: str, seed: int, capturer: GraphCapturer | None = None) -> tuple[int, int]:
    """Compare tokens of an overlapped random schedule with plain steps. Returns preemptions and steps launched."""
    rng = random.Random(seed)
    plain = random_llm(rng, folder, max_tokens_of_one=80, block_sizes=(4, 16))
    stream = SimulatedStream(rng, laziness=rng.choice([0.1, 0.5, 0.9, 1.0]))
    settings = {
        name: getattr(plain.config, name)
        for name in ("dtype", "device", "block_size", "max_num_batched_tokens", "long_prefill_token_threshold")
        + (
            "max_num_seqs", "num_kv_blocks", "batching_policy", "enable_prefix_caching", "swap_space",
            "preemption_mode", "speculative_config",
        )
    }  # fmt: skip
    llm = overlapped_llm(folder, stream, **settings)
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
            assert same_logprobs(output, wanted), f"{ours.params}"
            assert ours.abort_after is not None or output.finish_reason == wanted.finish_reason
            assert ours.abort_after is not None or len(tokens) == len(wanted.token_ids)
    return num_preemptions, launcher_of(llm).buffers._num_acquired
