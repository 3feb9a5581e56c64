"""Map of the KV cache: the use of each block, in runs of equal blocks. Plain JSON values."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from ...core.block_manager import BlockManager
from ...core.request import Request

MAX_CELLS = 4096  # every k-th block of a larger cache is shown: 4,096 take 0.5 ms
FREE, CACHED, SHARED = -1, -2, -3


def block_map(blocks: BlockManager, running: Iterable[Request], waiting: Iterable[Request]) -> dict[str, Any]:
    """Return the map. `runs`: [number of cells, use, number of cells, use, …]. A cell shows one of `stride` blocks.

    A use is the number of the request that alone has the block, or FREE, CACHED (free, and found again by its tokens)
    or SHARED. `swapped`: [[request, blocks on the host], …].
    """
    num_blocks = blocks.device.num_blocks
    stride = -(-num_blocks // MAX_CELLS)
    cached = () if blocks.cache is None else blocks.cache.blocks
    cells = [CACHED if block in cached else FREE for block in range(0, num_blocks, stride)]
    for request in running:
        table, number = request.block_table, request.arrival_order
        for index in table if stride == 1 else [block // stride for block in table if not block % stride]:
            cells[index] = number if cells[index] in (FREE, CACHED) else SHARED
    runs = [value for use, run in groupby(cells) for value in (len(list(run)), use)]
    hosted = [request for request in waiting if request.host_block_table]
    swapped = [[request.arrival_order, len(request.host_block_table)] for request in hosted]
    return {"num_blocks": num_blocks, "stride": stride, "runs": runs, "swapped": swapped}
