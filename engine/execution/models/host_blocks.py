"""HostBlocks: blocks of a KV cache, or slots of states, in host memory, where all layers of one are contiguous.

Swapping a block is one copy of megabytes (2 MiB for Llama-3.1-8B in bfloat16) out of or into pinned memory. The device
gathers and spreads the layers, so the host waits for no copy.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...device import to_device

# torch rounds pinned memory up to a power of two, so memory is allocated in pieces of nearly that size.
_PIECE_BYTES = 2**30
# Bytes gathered on the device at once.
_STAGED_BYTES = 2**26

BlockPairs = Sequence[tuple[int, int]]


class HostBlocks:
    """Host memory for `num_blocks` blocks of these caches. Copies keep the order of the device's work."""

    def __init__(self, caches: list[Tensor], num_blocks: int) -> None:
        """`caches`: contiguous tensors [N, …] of one dtype. Raises RuntimeError if out of memory."""
        self._caches = [_movable(cache).flatten(1) for cache in caches]
        self._device, dtype = caches[0].device, self._caches[0].dtype
        self.num_blocks = num_blocks
        self._widths = [cache.shape[1] for cache in self._caches]
        block_bytes = sum(self._widths) * dtype.itemsize
        self._blocks_per_piece = max(1, _PIECE_BYTES // block_bytes)
        self._num_staged = max(1, _STAGED_BYTES // block_bytes)
        self.pieces = [
            torch.empty(
                (min(self._blocks_per_piece, num_blocks - first), sum(self._widths)),
                dtype=dtype,
                pin_memory=self._device.type == "cuda",
            )
            for first in range(0, num_blocks, self._blocks_per_piece)
        ]

    def _block(self, number: int) -> Tensor:
        piece, place = divmod(number, self._blocks_per_piece)
        return self.pieces[piece][place]

    def swap_out(self, pairs: BlockPairs) -> None:
        """Copy blocks to the host; pairs are (device block, host block)."""
        for some in _batched(pairs, self._num_staged):
            sources = to_device(torch.tensor([source for source, _ in some]), self._device)
            staged = torch.cat([cache.index_select(0, sources) for cache in self._caches], dim=1)
            for block, (_, target) in zip(staged, some, strict=True):
                self._block(target).copy_(block, non_blocking=True)

    def swap_in(self, pairs: BlockPairs) -> None:
        """Copy blocks to the device; pairs are (host block, device block)."""
        for some in _batched(pairs, self._num_staged):
            staged = torch.empty((len(some), sum(self._widths)), dtype=self._caches[0].dtype, device=self._device)
            for block, (source, _) in zip(staged, some, strict=True):
                block.copy_(self._block(source), non_blocking=True)
            targets = to_device(torch.tensor([target for _, target in some]), self._device)
            for cache, part in zip(self._caches, torch.split(staged, self._widths, dim=1), strict=True):
                cache.index_copy_(0, targets, part)


def _batched(pairs: BlockPairs, size: int) -> list[BlockPairs]:
    return [pairs[first : first + size] for first in range(0, len(pairs), size)]


def _movable(cache: Tensor) -> Tensor:
    """View a cache of e4m3 as bytes, because torch cannot index e4m3 tensors."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
