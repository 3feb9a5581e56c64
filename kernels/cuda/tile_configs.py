"""Tiles that a GPU measured, by architecture; what is not here goes by the rules beside each kernel.

`make gpu` times other tiles for what misses its goal and prints lines for this table. A line goes in with the GPU, the
date and both times in the comment beside it.
"""

ARCHITECTURES = (80, 90, 100)  # a GPU goes by the latest of these that it is not older than

Tile = tuple[int, int, int, int]  # BLOCK_M, BLOCK_N, num_warps, num_stages

# (kernel, architecture, head size, bytes per element of the cache): tile. Nothing has been measured yet.
MEASURED: dict[tuple[str, int, int, int], Tile] = {}


def measured(kernel: str, capability: int, head_dim: int, element_size: int) -> Tile | None:
    """The tile of `kernel` ("decode", "prefill") at this head size on this GPU, or None."""
    architecture = max((each for each in ARCHITECTURES if each <= capability), default=0)
    return MEASURED.get((kernel, architecture, head_dim, element_size))
