"""HostBlocks: blocks of a KV cache in the host's memory, where a block's keys and values of all layers are one piece.

So a block is one copy of megabytes (2 MiB of Llama-3.1-8B's in bfloat16), out of or into pinned memory, and no copy
waits: layers are gathered and spread on the device.
"""

import torch
from torch import Tensor

from ...device import to_device

# torch rounds what it pins up to powers of two, so memory is taken in pieces of just about one.
_PIECE_BYTES = 2**30
# Gathered at once on the device.
_STAGED_BYTES = 2**26

BlockPairs = list[tuple[int, int]]


class HostBlocks:
    """Room for `num_blocks` blocks of these caches. Copies are done in the order of the device's work."""

    def __init__(self, caches: list[Tensor], num_blocks: int) -> None:
        """caches: each [N, …], of one shape and dtype. Raises RuntimeError without memory."""
        self._caches = [_movable(cache) for cache in caches]
        self._device, block = caches[0].device, self._caches[0][0]
        self.num_blocks = num_blocks
        self._shape = (len(caches), *block.shape)
        block_bytes = len(caches) * block.numel() * block.element_size()
        self._blocks_per_piece = max(1, _PIECE_BYTES // block_bytes)
        self._num_staged = max(1, _STAGED_BYTES // block_bytes)
        self._pieces = [
            torch.empty(
                (min(self._blocks_per_piece, num_blocks - first), *self._shape),
                dtype=block.dtype,
                pin_memory=self._device.type == "cuda",
            )
            for first in range(0, num_blocks, self._blocks_per_piece)
        ]

    def _block(self, number: int) -> Tensor:
        piece, place = divmod(number, self._blocks_per_piece)
        return self._pieces[piece][place]

    def swap_out(self, pairs: BlockPairs) -> None:
        """Copy blocks (on the device, here)."""
        for some in _batched(pairs, self._num_staged):
            sources = to_device(torch.tensor([source for source, _ in some]), self._device)
            staged = torch.stack([cache.index_select(0, sources) for cache in self._caches], dim=1)
            for block, (_, target) in zip(staged, some, strict=True):
                self._block(target).copy_(block, non_blocking=True)

    def swap_in(self, pairs: BlockPairs) -> None:
        """Copy blocks (here, on the device)."""
        for some in _batched(pairs, self._num_staged):
            staged = torch.empty((len(some), *self._shape), dtype=self._caches[0].dtype, device=self._device)
            for block, (source, _) in zip(staged, some, strict=True):
                block.copy_(self._block(source), non_blocking=True)
            targets = to_device(torch.tensor([target for _, target in some]), self._device)
            for index, cache in enumerate(self._caches):
                cache.index_copy_(0, targets, staged[:, index])


def _batched(pairs: BlockPairs, size: int) -> list[BlockPairs]:
    return [pairs[first : first + size] for first in range(0, len(pairs), size)]


def _movable(cache: Tensor) -> Tensor:
    """A cache of e4m3 as bytes, for torch indexes no such tensors."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
