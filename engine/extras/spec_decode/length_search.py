"""best_lengths: the draft lengths that bring the most tokens per second over all requests.

A draft of j tokens with acceptance p brings p + p² + … + pʲ more tokens (Leviathan et al. 2023). Its cost is the longer
pass and the drafter's time.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from .acceptance import NUM_LEVELS

_MIN_GAIN = 1.08  # least gain in the rate; less is not worth the risk
# Least gain for drafters that take time for each round (models): where 1.2 was predicted for prompts of 300 tokens and
# outputs of 160, 0.9 was measured, including reading the prompts.
_MIN_GAIN_OF_ROUNDS = 1.3


class Costs(NamedTuple):
    """Costs of one step in seconds."""

    plain: float  # a step without drafts
    token: float  # one more drafted token: drafting and verifying
    round: float  # one more round of the drafter, for any number of requests
    start: float  # calling the drafter at all


def best_lengths(
    counts: Mapping[int, int], *, num_decodes: int, costs: Costs, max_length: int
) -> tuple[dict[int, int], float]:
    """Return the best draft length for each level of acceptance, and the rate in tokens per second.

    counts: level → number of requests, among the num_decodes that decode. Adding every token that brings more than the
    rate itself maximises the rate (Dinkelbach 1967), so every level's length follows from one number.
    """
    best: dict[int, int] = {}
    best_rate = num_decodes / costs.plain
    min_rate = best_rate * (_MIN_GAIN_OF_ROUNDS if costs.round else _MIN_GAIN)
    for cap in range(1, max_length + 1) if costs.round else (max_length,):
        rate = num_decodes / costs.plain
        for _ in range(4):
            lengths = {level: draft_length(level, rate * costs.token, cap) for level in counts}
            num_tokens = num_decodes + sum(n * _expected(level, lengths[level]) for level, n in counts.items())
            num_drafted = sum(n * lengths[level] for level, n in counts.items())
            seconds = costs.plain + costs.start + costs.round * cap + costs.token * num_drafted
            if num_tokens / seconds <= rate * 1.0001:
                break
            rate = num_tokens / seconds
            if rate > max(best_rate, min_rate):
                best, best_rate = lengths, rate
    return best, best_rate


def draft_length(level: int, min_probability: float, max_length: int) -> int:
    """Return the length of the longest draft whose last token is accepted with at least this probability."""
    p, reached, length = level / NUM_LEVELS, 1.0, 0
    while length < max_length and (reached := reached * p) >= min_probability:
        length += 1
    return length


@lru_cache(maxsize=4096)
def _expected(level: int, length: int) -> float:
    """Return the expected number of accepted tokens of a draft of this length."""
    p = level / NUM_LEVELS
    return float(length) if p == 1 else p * (1 - p**length) / (1 - p)
