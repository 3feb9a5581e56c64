"""CacheBytes: blocks and state slots of a KVCache on a CPU as bytes, copied out and in.

a block:  its keys and values of every layer, one after the other
a slot:   its states of every layer, likewise
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ...execution.models.kv_cache import KVCache
from .read_buffers import touch

Bytes = NDArray[np.uint8]


class CacheBytes:
    """View of one cache's memory."""

    def __init__(self, cache: KVCache) -> None:
        self._blocks = [_rows(tensor) for tensor in cache.block_tensors]
        self._slots = [_rows(tensor) for tensor in cache.state_tensors]
        self.block_bytes, self.slot_bytes = _width(self._blocks), _width(self._slots)
        tensors = [*cache.block_tensors, *cache.state_tensors]
        self.layout = repr([(tuple(tensor.shape[1:]), str(tensor.dtype)) for tensor in tensors])

    def touch_blocks(self, max_bytes: int) -> None:
        """Let the first blocks, which are filled first, have their pages now."""
        for array in self._blocks:
            touch(array[: max_bytes // self.block_bytes])

    def read_block(self, block: int) -> Bytes:
        """Copy a block out."""
        return _gathered(self._blocks, block, self.block_bytes)

    def write_block(self, block: int, payload: Bytes) -> None:
        """Copy a block in."""
        _spread(self._blocks, block, payload)

    def read_slot(self, slot: int) -> Bytes:
        """Copy a slot out."""
        return _gathered(self._slots, slot, self.slot_bytes)

    def write_slot(self, slot: int, payload: Bytes) -> None:
        """Copy a slot in."""
        _spread(self._slots, slot, payload)


def _rows(tensor: torch.Tensor) -> Bytes:
    """Return the tensor's memory as bytes [blocks or slots, bytes of one]."""
    rows: Bytes = tensor.view(torch.uint8).flatten(1).numpy()
    return rows


def _width(arrays: Sequence[Bytes]) -> int:
    return sum(array.shape[1] for array in arrays)


def _gathered(arrays: Sequence[Bytes], row: int, width: int) -> Bytes:
    payload, start = np.empty(width, dtype=np.uint8), 0
    for array in arrays:
        end = start + array.shape[1]
        payload[start:end] = array[row]
        start = end
    return payload


def _spread(arrays: Sequence[Bytes], row: int, payload: Bytes) -> None:
    start = 0
    for array in arrays:
        end = start + array.shape[1]
        array[row] = payload[start:end]
        start = end
