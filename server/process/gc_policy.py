"""When Python looks for lost cycles among all its objects: between requests, not in the middle of a stream.

Such a search walks every event of every answer that is kept and holds the loop meanwhile: 120 ms with 1,000 streams of
100 tokens. Answers go without it; what is lost in cycles is seven small objects per connection that lived long.
"""

import asyncio
import gc
import time
from collections.abc import Callable

LOOK_S = 1.0
# Searches of the young objects, one for about 8,000 more of them, after which an idle moment is worth a full search.
ENOUGH = 10
# A server that is never idle takes a full search nevertheless, so often.
LONGEST_S = 900.0
_NEVER = 1_000_000_000


async def collect_when_idle(num_unfinished: Callable[[], int]) -> None:
    """Until cancelled: whenever two looks in a row find nothing unfinished. Then Python's own threshold comes back."""
    thresholds = gc.get_threshold()
    gc.freeze()  # what was imported stays anyway: 0.1 s of a full search
    gc.set_threshold(*thresholds[:2], _NEVER)
    was_idle, last = False, time.monotonic()
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            is_idle = not num_unfinished()
            if (is_idle and was_idle and gc.get_count()[2] >= ENOUGH) or time.monotonic() - last > LONGEST_S:
                gc.collect()
                last = time.monotonic()
            was_idle = is_idle
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
