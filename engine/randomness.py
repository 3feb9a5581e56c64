"""Randomness keyed by (seed, position): a draw depends on its request and place, never on batch-mates or devices."""

_MASK = 2**64 - 1


def mix(value: int) -> int:
    """A 64-bit integer scrambled so that neighbours share no pattern (SplitMix64's finaliser, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def derive_seed(seed: int, index: int) -> int:
    """The seed of the index-th child of a seed."""
    return mix(mix(seed & _MASK) ^ index)


def uniform(seed: int, position: int) -> float:
    """A number in (0, 1) for the token at this position; 32 bits fine, so that float32 sums never reach past it."""
    return ((mix(derive_seed(seed, position)) >> 32) + 0.5) / 2**32
