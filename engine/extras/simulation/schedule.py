"""splitfuse_schedule: the steps that serve requests of given lengths."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...config import EngineConfig, ResolvedConfig
from ...core.batch import NO_OUTPUT, RowOutput
from ...core.block_allocator import num_blocks_for
from ...core.block_manager import BlockManager, CacheSpec
from ...core.request import Request
from ...core.sampling_params import SamplingParams
from ...core.scheduler import Scheduler
from ...errors import ConfigError


class StepCounts(NamedTuple):
    """Counts of one step: prompt tokens, output tokens, and the chunks that the prompt tokens came in."""

    prefill: int
    decode: int
    num_chunks: int


def splitfuse_schedule(
    prompt_lens: Sequence[int],
    output_lens: Sequence[int],
    budget: int,
    chunk: int = 0,
    *,
    batching_policy: str = "splitfuse",
) -> list[StepCounts]:
    """Return the steps that serve these requests, which all arrive at the start, with blocks to spare.

    `budget`: most tokens of a step; `chunk`: most tokens of one prompt in a step, 0 = limited by the budget alone.
    The first output token comes with the last chunk of its prompt, so a request decodes output_len - 1 times.
    """
    if len(prompt_lens) != len(output_lens) or not prompt_lens or min(*prompt_lens, *output_lens) < 1:
        raise ConfigError("give as many output lengths as prompt lengths, all at least 1")
    wishes = EngineConfig(
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=chunk,
        max_num_seqs=len(prompt_lens),
        enable_prefix_caching=False,
        batching_policy=batching_policy,
    )
    return list(_steps(ResolvedConfig.of(wishes, device="cpu"), list(zip(prompt_lens, output_lens, strict=True))))


def _steps(config: ResolvedConfig, lengths: Sequence[tuple[int, int]]) -> Iterator[StepCounts]:
    num_blocks = sum(num_blocks_for(sum(pair), config.block_size) for pair in lengths)
    cache = CacheSpec(2 * num_blocks + 100, config.block_size)  # more than the watermark can need
    scheduler = Scheduler(config, BlockManager(cache, prefix_caching=False))
    for index, (prompt_len, output_len) in enumerate(lengths):
        scheduler.add(
            Request(
                request_id=str(index),
                prompt_token_ids=[0] * prompt_len,
                params=SamplingParams(),
                max_num_tokens=prompt_len + output_len,
                seed=0,
            )
        )
    while (batch := scheduler.schedule(0.0)) is not None:
        num_decode_tokens = batch.num_decode_tokens
        num_chunks = len(batch.rows) - num_decode_tokens
        yield StepCounts(batch.num_tokens - num_decode_tokens, num_decode_tokens, num_chunks)
        scheduler.update(batch, [RowOutput((0,)) if row.needs_sampling else NO_OUTPUT for row in batch.rows], 0.0)
