"""What a GPU measured, by architecture; tiles that are not here go by the rules beside each kernel.

`make gpu` times other tiles for what misses its goal and prints lines for this table. A line goes in with the GPU, the
date and both times in the comment beside it.
"""

# A GPU goes by the latest of these that it is not older than: those after which shared memory or tensor cores change.
ARCHITECTURES = (80, 89, 90, 100, 120)

Tile = tuple[int, int, int, int]  # BLOCK_M, BLOCK_N, num_warps, num_stages

# (kernel, architecture, head size, bytes per element of the cache): tile. Nothing has been measured yet.
MEASURED: dict[tuple[str, int, int, int], Tile] = {}


# A span of a decode shorter than this costs more in the second kernel than it saves in the first; rows too short for
# all the spans leave the last ones empty. Nothing has been measured yet: 32 programs of a row of 1,024 tokens leave 100
# of an H200's multiprocessors idle, so 64 and 128 are worth a try.
MIN_TOKENS_PER_SPLIT = {80: 256, 89: 256, 90: 256, 100: 256, 120: 256}


def min_tokens_per_split(capability: int) -> int:
    """Tokens of the shortest span into which a row is split on this GPU."""
    return MIN_TOKENS_PER_SPLIT[_architecture(capability) or ARCHITECTURES[0]]


def _architecture(capability: int) -> int:
    """0 for one older than all."""
    return max((each for each in ARCHITECTURES if each <= capability), default=0)


def measured(kernel: str, capability: int, head_dim: int, element_size: int) -> Tile | None:
    """The tile of `kernel` ("decode", "prefill") at this head size on this GPU, or None."""
    return MEASURED.get((kernel, _architecture(capability), head_dim, element_size))
