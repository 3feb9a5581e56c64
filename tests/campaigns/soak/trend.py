"""Whether a series rises: a least-squares slope, and how often chance alone gives as large a one."""

import random
from collections.abc import Sequence


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Of the regression line, in units of values per unit of times."""
    mean_time, mean_value = sum(times) / len(times), sum(values) / len(values)
    square = sum((time - mean_time) ** 2 for time in times)
    return sum((time - mean_time) * (value - mean_value) for time, value in zip(times, values, strict=True)) / square


def chance_of_slope(
    times: Sequence[float], values: Sequence[float], *, rng: random.Random, num_tries: int = 2000
) -> float:
    """The share of random orders of the values whose slope is as large: a permutation test, one-sided.

    It assumes no distribution, only that without a trend every order is as likely.
    """
    found, shuffled = slope(times, values), list(values)
    num_as_large = 0
    for _ in range(num_tries):
        rng.shuffle(shuffled)
        num_as_large += slope(times, shuffled) >= found
    return (num_as_large + 1) / (num_tries + 1)
