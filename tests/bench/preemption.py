"""Cost of preemption in a pool of half the load's size, by recompute, by swap and by `auto`'s choice, against the best
limit on sequences that a hand could set; all must give equal tokens.

`python tests/bench/preemption.py [--rounds 3]`: 40 M-parameter Llama, float32, all requests at once.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from typing import Any

from load import fresh_ids, model_folder, running, serve_ids

from splitfuse.client.bench.workload import normal_rows
from splitfuse.engine import EngineConfig

NUM_REQUESTS, PROMPT_LEN, OUTPUT_LEN = 64, 128, 128
MAX_NUM_SEQS = 32
# Half of the blocks that MAX_NUM_SEQS sequences hold at their end.
NUM_BLOCKS = MAX_NUM_SEQS * (PROMPT_LEN + OUTPUT_LEN) // 16 // 2
LIMITS = (12, 14, 16, 18, 20, 24)  # candidates for a limit set by hand; all but the first two preempt now and then


async def measure(common: dict[str, Any], prompts: list[tuple[list[int], int]], **changes: Any) -> dict[str, Any]:
    """Return output tokens/s, preemptions by kind, and the tokens."""
    async with running(EngineConfig(**(common | changes))) as engine:
        start = time.monotonic()
        results = await asyncio.gather(*(serve_ids(engine, ids, output_len) for ids, output_len in prompts))
        duration = time.monotonic() - start
        stats = engine.stats()
    tokens = [tokens for _, tokens in results]
    return {
        "rate": sum(map(len, tokens)) / duration,
        "preemptions": stats["num_preemptions"],
        "tokens": tokens,
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    lengths = normal_rows(NUM_REQUESTS, input_len=PROMPT_LEN, output_len=OUTPUT_LEN, seed=5)
    prompts = [(fresh_ids(request), request.output_len) for request in lengths]
    variants: dict[str, dict[str, Any]] = {
        "pool for all": {"num_kv_blocks": 4 * NUM_BLOCKS},
        "recompute": {"preemption_mode": "recompute"},
        "swap": {"preemption_mode": "swap", "swap_space": 1.0},
        "auto": {"swap_space": 1.0},
    } | {f"{limit} sequences": {"max_num_seqs": limit, "preemption_mode": "recompute"} for limit in LIMITS}
    rates: dict[str, list[float]] = {name: [] for name in variants}
    seen: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        common = {
            "model": model_folder(folder, "llama-40m"),
            "load_format": "dummy",
            "dtype": "float32",
            "max_model_len": 1024,
            "num_kv_blocks": NUM_BLOCKS,
            "max_num_seqs": MAX_NUM_SEQS,
            "enable_prefix_caching": False,
        }
        for _ in range(rounds):
            for name, changes in variants.items():
                result = await measure(common, prompts, **changes)
                rates[name].append(result["rate"])
                seen[name] = result["preemptions"]
                assert result["tokens"] == seen.setdefault("tokens", result["tokens"]), f"{name} changes the answer"
    print(
        f"{NUM_REQUESTS} requests of about {PROMPT_LEN} + {OUTPUT_LEN} tokens, {NUM_BLOCKS} blocks of 16, "
        f"at most {MAX_NUM_SEQS} sequences; all outputs identical"
    )
    for name, values in rates.items():
        print(
            f"{name:>14}: {statistics.median(values):7.1f} output tok/s ({min(values):.1f} to {max(values):.1f}), "
            f"preemptions {seen[name]}"
        )


if __name__ == "__main__":
    asyncio.run(main())
