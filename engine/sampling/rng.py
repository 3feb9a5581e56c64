"""Randomness keyed by (seed, position): a sample depends on these alone, never on batch-mates or devices."""

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


def sample_key(seed: int, position: int) -> int:
    """The key with which the token at this position is sampled, as a signed 64-bit integer for `ops.gumbel_argmax`."""
    key = mix(derive_seed(seed, position))
    return key - 2**64 if key >= 2**63 else key
