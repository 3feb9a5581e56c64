"""Random schedule of an EngineCore, with a check of its invariants after every step."""

import random
from dataclasses import dataclass, field
from typing import Any

from splitfuse.engine import LLM, CompletionOutput, SamplingParams
from splitfuse.engine.core.outputs import PromptLogprobs

_SPECULATION = (
    None,
    {"method": "ngram", "prompt_lookup_min": 1, "adaptive": False},
    {"method": "suffix", "num_speculative_tokens": 9, "adaptive": False},
)


@dataclass
class Arrival:
    """Prompt with its parameters, and the steps at which it comes and perhaps is aborted."""

    prompt: list[int]
    params: SamplingParams
    at_step: int = 0
    abort_after: int | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs | None = None

    def __post_init__(self) -> None:
        self.outputs = [CompletionOutput(index) for index in range(self.params.n)]

    @property
    def output(self) -> CompletionOutput:
        return self.outputs[0]


def run_schedule(llm: LLM, arrivals: list[Arrival]) -> int:
    """Run all arrivals to their end; their outputs are filled in. Returns the number of preemptions."""
    core, pipeline = llm.engine.core, llm.engine.pipeline
    allocator = core.blocks.device
    waiting = sorted(arrivals, key=lambda arrival: arrival.at_step)
    by_id: dict[str, Arrival] = {}
    before = core.scheduler.num_preemptions
    for step in range(100_000):
        while waiting and (waiting[0].at_step <= step or not core.num_unfinished):
            arrival = waiting.pop(0)
            request_id = f"{id(llm)}-{len(by_id)}"
            by_id[request_id] = arrival
            tokenized = llm.run(llm.engine.prompts.tokenize(arrival.prompt, arrival.params, is_new=False))
            core.add(llm.engine._input_processor.requests(request_id, tokenized, now=float(step)))
        for request_id, arrival in by_id.items():
            if arrival.abort_after is not None and step >= arrival.at_step + arrival.abort_after:
                for delta in core.abort(request_id):
                    arrival.outputs[delta.index].add(delta)
        core.scheduler.check()
        output = pipeline.step()
        core.scheduler.check()
        if output.stats is not None:
            num_tokens = output.stats.num_prefill_tokens + output.stats.num_decode_tokens
            is_whole = llm.config.batching_policy in ("prefill_first", "static")
            assert num_tokens <= (10_000 if is_whole else llm.config.max_num_batched_tokens)
        for delta in output.deltas:
            by_id[delta.request_id].outputs[delta.index].add(delta)
            by_id[delta.request_id].prompt_logprobs = delta.prompt_logprobs or by_id[delta.request_id].prompt_logprobs
        if not core.num_unfinished and not waiting and not pipeline.is_busy:
            break
    assert all(output.finish_reason for a in arrivals for output in a.outputs), "some request never ended"
    assert allocator.num_free_blocks == allocator.num_blocks, "blocks leaked"
    return core.scheduler.num_preemptions - before


def random_llm(
    rng: random.Random, folder: str, *, max_tokens_of_one: int, block_sizes: tuple[int, ...], **options: Any
) -> LLM:
    """Return an LLM with random budget, block size and chunk limit, and a pool often too small for all at once."""
    block_size = rng.choice(block_sizes)
    swap_space = rng.choice([0, 2e-4, 2e-3])  # GiB: none, some 200 tokens, plenty
    smallest = -(-max_tokens_of_one // block_size)
    drawn: dict[str, Any] = {
        "model": folder,
        "dtype": "float32",
        "device": "cpu",
        "block_size": block_size,
        "max_num_batched_tokens": rng.choice([rng.randint(1, 16), rng.randint(17, 128), rng.randint(129, 512)]),
        "long_prefill_token_threshold": rng.choice([0, 0, rng.randint(1, 200)]),
        "max_num_seqs": rng.randint(1, 16),
        "num_kv_blocks": smallest + rng.choice([0, 1, smallest // 2, smallest * 8]),
        "batching_policy": rng.choice(["splitfuse", "splitfuse", "prefill_first", "decode_first", "static"]),
        "enable_prefix_caching": rng.random() < 0.6,
        "swap_space": swap_space,
        "preemption_mode": rng.choice(["auto", "recompute", "swap"]) if swap_space else "auto",
        "speculative_config": rng.choice(_SPECULATION),
    }
    return LLM(**{**drawn, **options})
