"""Prefix hits of models with recurrent layers by rules for checkpoints, on chats or a trace, without a model.

`python tests/bench/checkpoints.py [--trace mooncake_conversation_trace.jsonl]`: requests come one after the other, at
1/4 of their lengths, so that a block of 512 tokens of the trace becomes 8 of ours. Without a trace 120 seeded chats
take turns: 3 shared system prompts of 800 tokens, a first message of 400 to 6,000, then 2 to 7 turns of 100 tokens with
answers of 40 to 1,200; a turn in six repeats or changes an earlier message. All rules have the same memory and the same
share of it for checkpoints; sizes are given in tokens of the attention layers' cache.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from splitfuse.client.bench.traces import TraceRow, read_trace
from splitfuse.engine.config import EngineConfig
from splitfuse.engine.core.batch import BatchRow, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.core.state_places import StateSpec
from splitfuse.engine.extras.hybrid.checkpoint_positions import CheckpointPositions, Position
from splitfuse.engine.extras.hybrid.checkpoints import Checkpoint, Checkpoints
from splitfuse.engine.extras.hybrid.scheduler import HybridScheduler

SCALE = 4
HASHED = 512 // SCALE  # tokens of a hashed block of the trace
BLOCK_SIZE, GRID = 16, 256 // SCALE
SHARE = 0.25  # of the memory, for checkpoints
NUM_LIVE = 2
# A slot in tokens of the cache: 10 convolutions of LFM2-350M; 18 delta rules of Qwen3.5-0.8B.
SHAPES = {"LFM2-350M": 3, "Qwen3.5-0.8B": 1600}
SIZES = (100_000, 400_000)


class Nowhere(CheckpointPositions):
    def wanted(self, request: Request, *, begin: int, end: int, num_in_chain: int) -> list[Position]:
        return []


class EveryBlock(CheckpointPositions):
    def wanted(self, request: Request, *, begin: int, end: int, num_in_chain: int) -> list[Position]:
        first = begin // self.block_size + 1
        return [Position(edge * self.block_size, True) for edge in range(first, end // self.block_size + 1)]


class Branches(CheckpointPositions):
    """Marconi's admission: where a cached prompt branches, and the last state of the output."""

    def wanted(self, request: Request, *, begin: int, end: int, num_in_chain: int) -> list[Position]:
        last = end // self.block_size * self.block_size
        positions = {last: True} if last > begin and end >= request.num_prompt_tokens else {}
        if begin < num_in_chain <= end:
            positions[num_in_chain] = False
        return [Position(edge, True, is_trail) for edge, is_trail in sorted(positions.items())]


class Utilities(Checkpoints):
    """Marconi's eviction: least recency + alpha · tokens saved, each scaled to 0 .. 1 over all checkpoints."""

    alpha = 1.0

    def _rank(self, checkpoint: Checkpoint) -> None:
        self._num_entries += 1
        checkpoint.rank = self._num_entries

    def supersede(self, checkpoint: Checkpoint) -> None:
        pass

    def next_evicted(self, can_go: Callable[[Checkpoint], bool]) -> Checkpoint | None:
        found = [checkpoint for checkpoint in self if can_go(checkpoint)]
        first, most = min(c.rank for c in found), max(c.gain for c in found)
        span = max(c.rank for c in found) - first or 1
        self.num_evictions += 1
        return min(found, key=lambda c: (c.rank - first) / span + self.alpha * c.gain / most)


def tokens_of(row: TraceRow) -> list[int]:
    """Return the prompt of a row: equal hashed blocks have equal tokens."""
    tokens = [(block * 7919 + i) % 2**31 for block in row.hash_ids or () for i in range(HASHED)]
    return tokens[: max(1, row.prompt_len // SCALE)]


def answer(scheduler: Scheduler, number: int, prompt: list[int], num_new: int) -> Request:
    """Answer one prompt. All but the last tokens come as one draft, which is right."""
    request = Request(
        request_id=str(number), prompt_token_ids=prompt, params=SamplingParams(), max_num_tokens=len(prompt) + num_new,
        seed=0,
    )  # fmt: skip
    scheduler.add(request)
    while not request.is_finished:
        left = request.max_num_tokens - request.num_tokens - 3
        batch = scheduler.schedule(0.0, drafts={request: left} if request.num_output_tokens and left > 0 else {})
        assert batch is not None
        scheduler.update(batch, [output_of(row, number) for row in batch.rows], 0.0)
    return request


def output_of(row: BatchRow, number: int) -> RowOutput:
    count = (1 + row.num_drafts) if row.needs_sampling else 0
    return RowOutput(tuple(2**30 + number + i for i in range(count)), num_drafts=row.num_drafts)


def rules(spec: StateSpec, config: EngineConfig, cache: CacheSpec) -> dict[str, Callable[[], Scheduler]]:
    def scheduler(positions: type[CheckpointPositions], alpha: float | None = None) -> Callable[[], Scheduler]:
        def made() -> Scheduler:
            found: Any = HybridScheduler(config, cache, spec)
            found.blocks._positions = positions(BLOCK_SIZE, GRID, spec.num_checkpoints)
            if alpha is not None:
                found.blocks.slots.checkpoints = Utilities(spec.num_slots)
                found.blocks.slots.checkpoints.alpha = alpha
            return found  # type: ignore[no-any-return]

        return made

    return {
        "none": scheduler(Nowhere),
        "every block": scheduler(EveryBlock),
        **{f"Marconi, alpha {alpha}": scheduler(Branches, alpha) for alpha in (0.0, 1.0)},
        "ours": scheduler(CheckpointPositions),
    }


def serve_trace(scheduler: Scheduler, load: Sequence[TraceRow]) -> None:
    for number, row in enumerate(load):
        answer(scheduler, number, tokens_of(row), max(2, row.output_len // SCALE))


def serve_chats(scheduler: Scheduler, num_chats: int, seed: int) -> None:
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(2**30) for _ in range(count // SCALE)]

    systems = [tokens(800) for _ in range(3)]
    chats = [rng.choice(systems) + tokens(rng.randint(400, 6000)) for _ in range(num_chats)]
    ends: list[list[int]] = [[] for _ in chats]  # of messages, to which a user may return
    turns = [index for index in range(num_chats) for _ in range(rng.randint(3, 8))]
    # Chats begin one after the other; at any time about 30 take turns.
    turns.sort(key=lambda index: index + 30 * rng.random())
    for number, index in enumerate(turns):
        if ends[index] and rng.random() < 1 / 6:
            chats[index] = chats[index][: rng.choice(ends[index])] + tokens(100)
        request = answer(scheduler, number, chats[index], rng.randint(40, 1200) // SCALE)
        ends[index] += [request.num_prompt_tokens, request.num_tokens]
        chats[index] = request.token_ids + tokens(100)


def hit_rate(scheduler: Scheduler, serve: Callable[[Scheduler], None]) -> float:
    """Return the share of prompt tokens that were found."""
    serve(scheduler)
    return scheduler.blocks.num_prefix_hits / scheduler.blocks.num_prefix_queries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--chats", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1, help="of the chats")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--memory", type=int, nargs="+", default=SIZES, help="in tokens of the cache")
    args = parser.parse_args()
    serve = partial(serve_chats, num_chats=args.chats, seed=args.seed)
    if args.trace is not None:
        serve = partial(serve_trace, load=read_trace(args.trace)[: args.requests])
    config = EngineConfig(block_size=BLOCK_SIZE, max_num_batched_tokens=2**20, max_num_seqs=1)
    for size in args.memory:
        blocks = size // SCALE // BLOCK_SIZE
        attention = Scheduler(config, BlockManager(CacheSpec(blocks, BLOCK_SIZE), prefix_caching=True))
        print(f"| {size} | attention alone | | {hit_rate(attention, serve):.1%} |", flush=True)
        for shape, state in SHAPES.items():
            num_checkpoints = min(int(blocks * BLOCK_SIZE * SHARE * SCALE / state), int(blocks * (1 - SHARE)))
            cache = CacheSpec(int(blocks * (1 - SHARE)), BLOCK_SIZE)
            spec = StateSpec(NUM_LIVE, num_checkpoints, max_drafts=10_000, grid=GRID)
            for name, made in rules(spec, config, cache).items():
                start = time.perf_counter()
                rate = hit_rate(made(), serve)
                seconds = time.perf_counter() - start
                print(f"| {size} | {shape}, {num_checkpoints} | {name} | {rate:.1%} | {seconds:.0f} s |", flush=True)


if __name__ == "__main__":
    main()
