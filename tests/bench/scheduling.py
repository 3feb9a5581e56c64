"""Cost of a step's scheduling: `python tests/bench/scheduling.py` prints µs per step by number of sequences.

Goal: at most 60 µs + 1.5 µs per sequence (median) at 256 sequences, for schedule and update together.
"""

import statistics
import time

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.core.batch import NO_OUTPUT, RowOutput
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.core.scheduler import Scheduler

STEPS = 300


def measure(num_seqs: int, *, prefix_caching: bool) -> float:
    """Return the median seconds of schedule + update with that many sequences decoding."""
    config = EngineConfig(max_num_seqs=num_seqs, max_num_batched_tokens=16 * num_seqs)
    scheduler = Scheduler(config, BlockManager(CacheSpec(40 * num_seqs, 16), prefix_caching=prefix_caching))
    params = SamplingParams()
    for index in range(num_seqs):
        scheduler.add(
            Request(
                request_id=str(index),
                prompt_token_ids=[index] * 16,
                params=params,
                max_num_tokens=16 + STEPS,
                seed=index,
            )
        )
    token = RowOutput((7,))
    times = []
    for _ in range(STEPS - 10):
        start = time.perf_counter()
        batch = scheduler.schedule(start)
        middle = time.perf_counter()
        assert batch is not None
        outputs = [token if row.needs_sampling else NO_OUTPUT for row in batch.rows]
        begin = time.perf_counter()
        scheduler.update(batch, outputs, begin)
        times.append(middle - start + time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    print(f"{'sequences':>10} {'µs/step':>9} {'goal':>7}   with the prefix cache on")
    for num_seqs in (1, 16, 64, 256):
        off, on = (measure(num_seqs, prefix_caching=caching) * 1e6 for caching in (False, True))
        print(f"{num_seqs:>10} {off:>9.0f} {60 + 1.5 * num_seqs:>7.0f}   {on:.0f}")


if __name__ == "__main__":
    main()
