"""Similarity of two embeddings, the score of a pair for a model without a head for pairs."""

import math
from collections.abc import Sequence
from operator import mul


def similarity(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the cosine of two vectors; 0 if one is zero."""
    length = math.hypot(*first) * math.hypot(*second)
    return math.fsum(map(mul, first, second)) / length if length else 0.0
