"""Table of measured tiles by GPU architecture; other tiles are chosen by the rules beside each kernel.

`make gpu` times other tiles for kernels that miss their goal and prints lines for this table. The comment beside a line
states the GPU, the date and both times.
"""

# Architectures with new shared memory or tensor cores. A GPU uses the latest one that is not newer than itself.
ARCHITECTURES = (80, 89, 90, 100, 120)

Tile = tuple[int, int, int, int]  # BLOCK_M, BLOCK_N, num_warps, num_stages

# (kernel, architecture, head size, bytes per element of the cache): tile.
MEASURED: dict[tuple[str, int, int, int], Tile] = {
    ("decode", 90, 128, 2): (16, 32, 4, 3),  # H200, 2026-11-26, 32 x 4096: 147 us, with 4 stages 150
    ("decode", 90, 128, 1): (16, 128, 4, 2),  # H200, 2026-11-27, 256 x 1024: 213 us, with 64 keys and 3 stages 227
}


# A span of a decode shorter than this costs more in the second kernel than it saves in the first; a row that is too
# short for all spans leaves the last ones empty. H100, 2026-11-27, 1 x 1024: 15.8 us with spans of 256, 11.7 of 128,
# 10.2 of 64. The others are not measured.
MIN_TOKENS_PER_SPLIT = {80: 256, 89: 256, 90: 64, 100: 256, 120: 256}


def min_tokens_per_split(capability: int) -> int:
    """Return the tokens of the shortest span into which a row is split on this GPU."""
    return MIN_TOKENS_PER_SPLIT[_architecture(capability) or ARCHITECTURES[0]]


def _architecture(capability: int) -> int:
    """Return the GPU's entry of ARCHITECTURES; 0 if the GPU is older than all of them."""
    return max((architecture for architecture in ARCHITECTURES if architecture <= capability), default=0)


def measured(kernel: str, capability: int, head_dim: int, element_size: int) -> Tile | None:
    """Return the measured tile of `kernel` ("decode", "prefill") for this head size and GPU, or None."""
    return MEASURED.get((kernel, _architecture(capability), head_dim, element_size))
