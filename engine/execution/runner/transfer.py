"""Transfers: a step's arrays on their way from the host to the device.

DirectTransfer copies each array; the caller may wait for the device. TransferBuffers packs the arrays of a step, so
they go in one copy out of pinned memory, for which nobody waits:

    host buffer, pinned   [ field | field | … ]  --one copy-->  device buffer   [ field | field | … ]
    host buffer, pinned   [ tokens ]             <--one copy--  sampled tokens (pending_outputs.py)

There are two host buffers: the host writes one while the device reads the other. A host buffer is written again only
when the event after all the work over it has happened. The device has one buffer, because it does work in order.
"""

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ...device import Event, Stream, copy, host_tensor
from ..models.forward_inputs import Arrays

NUM_HOST_BUFFERS = 2
_ALIGNMENT = 16  # bytes; kernels load 16 at once, and are compiled for one alignment
_DTYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64, np.dtype(np.float32): torch.float32}


class HostBuffer:
    """Host memory of one step in flight."""

    def __init__(self, num_bytes: int, num_tokens: int, *, pinned: bool) -> None:
        self.fields = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self.tokens = torch.empty(num_tokens, dtype=torch.int64, pin_memory=pinned)
        self.event: Event | None = None  # after all work over this buffer


class Transfer(Protocol):
    """Way of a step's arrays to the device."""

    def send(self, arrays: Arrays, more: Arrays) -> tuple[dict[str, Tensor], HostBuffer | None]:
        """Return the arrays as tensors on the device, and the step's memory of the host, if it has some.

        `more` holds the arrays that only some steps have, of any size. Work queued from now on sees the tensors.
        """


class DirectTransfer:
    """Copies each array by itself; for steps whose results are waited for. On a CPU nothing is copied."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def send(self, arrays: Arrays, more: Arrays) -> tuple[dict[str, Tensor], HostBuffer | None]:
        fields = {name: torch.from_numpy(array) for name, array in (arrays | more).items()}
        if self._device.type != "cpu":
            fields = {name: field.to(self._device, non_blocking=True) for name, field in fields.items()}
        return fields, None


class Field(NamedTuple):
    """Place of an array in a buffer."""

    offset: int  # bytes
    num_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype


Layout = dict[str, Field]


def layout_of(arrays: Arrays) -> Layout:
    """Place the arrays one after the other, in their order: an array's offset does not depend on later arrays."""
    layout, offset = {}, 0
    for name, array in arrays.items():
        layout[name] = Field(offset, array.nbytes, array.shape, _DTYPES[array.dtype])
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return layout


def num_bytes(layout: Layout) -> int:
    """Return the number of bytes that the layout needs."""
    return max((field.offset + field.num_bytes for field in layout.values()), default=0)


def views(buffer: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Return the fields of a buffer [bytes] uint8 with their dtypes and shapes; they share its memory."""
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


class TransferBuffers:
    """Two host buffers, used in turn, and the device's buffer."""

    def __init__(self, num_bytes: int, num_tokens: int, *, device: torch.device, stream: Stream) -> None:
        """Make room for `num_bytes` of fields and `num_tokens` sampled tokens in a step."""
        self._stream = stream
        self._device = device
        self.device_buffer = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._host_buffers = [
            HostBuffer(num_bytes, num_tokens, pinned=device.type == "cuda") for _ in range(NUM_HOST_BUFFERS)
        ]
        self._num_acquired = 0

    def acquire(self) -> HostBuffer:
        """Return the host buffer of the next step, free to be written."""
        host = self._host_buffers[self._num_acquired % len(self._host_buffers)]
        self._num_acquired += 1
        if host.event is not None:
            host.event.wait()
        return host

    def send(self, arrays: Arrays, more: Arrays) -> tuple[dict[str, Tensor], HostBuffer | None]:
        host, layout = self.acquire(), layout_of(arrays)
        size = num_bytes(layout)
        assert size <= len(self.device_buffer), f"{size} bytes in a step, there is room for {len(self.device_buffer)}"
        write(host.fields, arrays, layout)
        self._stream.run(lambda: copy(self.device_buffer[:size], host.fields[:size]))
        fields = views(self.device_buffer, layout)
        return (fields | self._send_more(more) if more else fields), host

    def _send_more(self, arrays: Arrays) -> dict[str, Tensor]:
        """Send arrays through memory of their own, which torch does not reuse before the device has read it."""
        layout = layout_of(arrays)
        source = host_tensor(num_bytes(layout), dtype=torch.uint8, device=self._device)
        write(source, arrays, layout)
        target = torch.empty_like(source, device=self._device)
        self._stream.run(lambda: copy(target, source))
        return views(target, layout)
