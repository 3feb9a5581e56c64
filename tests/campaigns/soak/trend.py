"""Trend of a series: its least-squares slope, and the probability of as large a slope by chance."""

import random
from collections.abc import Sequence


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the regression line, in units of values per unit of times."""
    mean_time, mean_value = sum(times) / len(times), sum(values) / len(values)
    square = sum((time - mean_time) ** 2 for time in times)
    return sum((time - mean_time) * (value - mean_value) for time, value in zip(times, values, strict=True)) / square


def chance_of_slope(
    times: Sequence[float], values: Sequence[float], *, rng: random.Random, num_tries: int = 2000
) -> float:
    """Return the share of random orders of the values with as large a slope: a permutation test, one-sided.

    The test assumes no distribution, only that without a trend every order is equally likely.
    """
    found, shuffled = slope(times, values), list(values)
    num_as_large = 0
    for _ in range(num_tries):
        rng.shuffle(shuffled)
        num_as_large += slope(times, shuffled) >= found
    return (num_as_large + 1) / (num_tries + 1)
