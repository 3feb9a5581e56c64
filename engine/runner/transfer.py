"""Staging: a step's numbers cross to the device packed, in one copy out of pinned memory, and its tokens come back.

    host slot, pinned   [ field | field | … ]  --one copy-->  device buffer   [ field | field | … ]
    host slot, pinned   [ tokens ]             <--one copy--  device tokens

There are two host slots: one is written while the device reads the other. One is written again only when the event
behind all the work over it has happened. The device's side is one buffer, as its work is done in order.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..device import Event, Stream
from ..models.forward_inputs import Arrays

NUM_SLOTS = 2
_ALIGNMENT = 16  # bytes; kernels load 16 at once, and are compiled for one alignment
_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64, np.dtype(np.float32): torch.float32}


class Field(NamedTuple):
    """Where an array stands in a buffer."""

    offset: int  # bytes
    num_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype


Layout = dict[str, Field]


def layout_of(arrays: Arrays) -> Layout:
    """One behind the other, in the order of the mapping: the first ones' places do not depend on the rest."""
    layout, offset = {}, 0
    for name, array in arrays.items():
        layout[name] = Field(offset, array.nbytes, array.shape, _DTYPES[array.dtype])
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return layout


def num_bytes(layout: Layout) -> int:
    """Bytes that the layout needs."""
    return max((field.offset + field.num_bytes for field in layout.values()), default=0)


def views(buffer: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The fields of a buffer [bytes] uint8, each with its dtype and shape; they share its memory."""
    return {
        name: buffer[field.offset : field.offset + field.num_bytes].view(field.dtype).view(field.shape)
        for name, field in layout.items()
    }


class Slot:
    """Host memory of one step under way."""

    def __init__(self, num_bytes: int, num_tokens: int, *, pinned: bool) -> None:
        self.fields = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self.tokens = torch.empty(num_tokens, dtype=torch.int64, pin_memory=pinned)
        self.event: Event | None = None  # behind all work over it

    def write(self, arrays: Arrays, layout: Layout) -> None:
        """Fill in the fields."""
        buffer = self.fields.numpy()
        for name, array in arrays.items():
            field = layout[name]
            buffer[field.offset : field.offset + field.num_bytes] = array.reshape(-1).view(np.uint8)


class Staging:
    """The slots, the device's buffer, and the turn that the slots take."""

    def __init__(self, num_bytes: int, num_tokens: int, *, device: torch.device, stream: Stream) -> None:
        """Room for `num_bytes` of fields and `num_tokens` tokens in a step."""
        self._stream = stream
        self.buffer = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._slots = [Slot(num_bytes, num_tokens, pinned=device.type == "cuda") for _ in range(NUM_SLOTS)]
        self._num_taken = 0

    def take(self) -> Slot:
        """The slot of the next step, free to be written."""
        slot = self._slots[self._num_taken % len(self._slots)]
        self._num_taken += 1
        if slot.event is not None:
            slot.event.wait()
        return slot

    def send(self, slot: Slot, arrays: Arrays) -> dict[str, Tensor]:
        """Have the arrays copied to the device; the fields as they will be there when work given from now on runs."""
        layout = layout_of(arrays)
        size = num_bytes(layout)
        assert size <= len(self.buffer), f"{size} bytes in a step, there is room for {len(self.buffer)}"
        slot.write(arrays, layout)
        self._stream.run(lambda: _copy(self.buffer[:size], slot.fields[:size]))
        return views(self.buffer, layout)

    def receive(self, slot: Slot, tokens: Tensor) -> None:
        """Have tokens [n] int64 of the device copied to slot.tokens[:n], and let the slot go when that has happened."""
        self._stream.run(lambda: _copy(slot.tokens[: len(tokens)], tokens))
        slot.event = self._stream.record()


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)
