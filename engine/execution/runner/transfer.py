"""TransferBuffers: a step's inputs go to the device packed, in one copy out of pinned memory; its tokens come back.

    host buffer, pinned   [ field | field | … ]  --one copy-->  device buffer   [ field | field | … ]
    host buffer, pinned   [ tokens ]             <--one copy--  device tokens

There are two host buffers: one is written while the device reads the other. One is written again only when the event
after all the work over it has happened. On the device there is one buffer, as work is done in order.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...device import Event, Stream, copy
from ..models.forward_inputs import Arrays

NUM_HOST_BUFFERS = 2
_ALIGNMENT = 16  # bytes; kernels load 16 at once, and are compiled for one alignment
_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64, np.dtype(np.float32): torch.float32}


class Field(NamedTuple):
    """Where an array is in a buffer."""

    offset: int  # bytes
    num_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype


Layout = dict[str, Field]


def layout_of(arrays: Arrays) -> Layout:
    """One after the other, in the order of the mapping: the offsets of the first do not depend on the rest."""
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


def write(buffer: Tensor, arrays: Arrays, layout: Layout) -> None:
    """Fill in the fields of a buffer [bytes] uint8 on the host."""
    target = buffer.numpy()
    for name, array in arrays.items():
        field = layout[name]
        target[field.offset : field.offset + field.num_bytes] = array.reshape(-1).view(np.uint8)


class HostBuffer:
    """Host memory of one step in flight."""

    def __init__(self, num_bytes: int, num_tokens: int, *, pinned: bool) -> None:
        self.fields = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self.tokens = torch.empty(num_tokens, dtype=torch.int64, pin_memory=pinned)
        self.event: Event | None = None  # after all work over it


class TransferBuffers:
    """The host's buffers, used in turn, and the device's."""

    def __init__(self, num_bytes: int, num_tokens: int, *, device: torch.device, stream: Stream) -> None:
        """Room for `num_bytes` of fields and `num_tokens` tokens in a step."""
        self._stream = stream
        self._device = device
        self.device_buffer = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._host_buffers = [
            HostBuffer(num_bytes, num_tokens, pinned=device.type == "cuda") for _ in range(NUM_HOST_BUFFERS)
        ]
        self._num_acquired = 0

    def acquire(self) -> HostBuffer:
        """The host buffer of the next step, free to be written."""
        host = self._host_buffers[self._num_acquired % len(self._host_buffers)]
        self._num_acquired += 1
        if host.event is not None:
            host.event.wait()
        return host

    def send(self, host: HostBuffer, arrays: Arrays) -> dict[str, Tensor]:
        """Have the arrays copied to the device; the fields as they will be there when work given from now on runs."""
        layout = layout_of(arrays)
        size = num_bytes(layout)
        assert size <= len(self.device_buffer), f"{size} bytes in a step, there is room for {len(self.device_buffer)}"
        write(host.fields, arrays, layout)
        self._stream.run(lambda: copy(self.device_buffer[:size], host.fields[:size]))
        return views(self.device_buffer, layout)

    def send_more(self, arrays: Arrays) -> dict[str, Tensor]:
        """The same for what only some steps have, of any size: through memory of its own, which torch keeps from being
        used again before it has been read.
        """
        layout = layout_of(arrays)
        source = self.host_tensor(num_bytes(layout), dtype=torch.uint8)
        write(source, arrays, layout)
        target = torch.empty_like(source, device=self._device)
        self._stream.run(lambda: copy(target, source))
        return views(target, layout)

    def host_tensor(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Memory of the host that the device can copy from or to."""
        return torch.empty(shape, dtype=dtype, pin_memory=self._device.type == "cuda")

    def receive(self, host: HostBuffer, tokens: Tensor) -> None:
        """Have tokens [n] int64 of the device copied to host.tokens[:n]; the host buffer is free after that."""
        self._stream.run(lambda: copy(host.tokens[: len(tokens)], tokens))
        host.event = self._stream.record()
