"""Arrival times of requests, in seconds after the start of a run, from a given source of random numbers."""

import itertools
import math
import random


def arrivals(num_requests: int, *, rate: float, burstiness: float, source: random.Random) -> list[float]:
    """Return arrival times at `rate` requests per second on average; an infinite rate sends all at once.

    Gaps follow a gamma distribution of shape `burstiness`: 1 is a Poisson process, less comes in bursts, more comes
    evenly, infinity at equal distances. As in `vllm bench serve` the times are stretched so that the last one is
    at num_requests / rate: runs of one rate take the same time whatever the seed.
    """
    if num_requests == 0 or math.isinf(rate):
        return [0.0] * num_requests
    if math.isinf(burstiness):
        gaps = [1 / rate] * num_requests
    else:
        gaps = [source.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(num_requests)]
    times = list(itertools.accumulate(gaps))
    stretch = num_requests / rate / times[-1] if times[-1] > 0 else 1.0
    return [time * stretch for time in times]
