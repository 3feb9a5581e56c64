"""Randomness keyed by (seed, position) alone: a sample never depends on batch-mates or devices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

_MASK = 2**64 - 1
_MANY = 8  # from this many keys on, numpy is faster than 2 us for each key


def mix(value: Any) -> Any:
    """Scramble a 64-bit integer, or a uint64 array, so that neighbours share no pattern.

    SplitMix64's finaliser (Steele et al. 2014).
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def derive_seed(seed: int, index: int) -> int:
    """Return the seed of the index-th child of a seed."""
    return int(mix(mix(seed & _MASK) ^ index))


def sample_keys(seeds: Sequence[int], positions: Sequence[int]) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return the keys for sampling tokens at these positions with `ops.gumbel_argmax`."""
    if len(seeds) < _MANY:
        keys = [mix(derive_seed(*each)) for each in zip(seeds, positions, strict=True)]
        return np.array(keys, dtype=np.uint64).view(np.int64)
    scrambled = mix(np.array([seed & _MASK for seed in seeds], dtype=np.uint64))
    return mix(mix(scrambled ^ np.array(positions, dtype=np.uint64))).view(np.int64)  # type: ignore[no-any-return]
