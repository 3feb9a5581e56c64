"""WeightReader: threads read tensors of safetensors files to a device before a model takes them.

A thread reads a tensor chunk by chunk into one of its two pinned buffers, while the device copies the other one. Copies
are queued on the stream that uses the tensors, so no thread waits for them, and freed memory is not overwritten before
it has been read. A tensor is held until it is taken. At most MAX_BYTES_AHEAD are read ahead, so a model that is
quantized while it loads need not fit unquantized.
"""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..device import Event, Stream, copy
from .tensor_entry import TensorEntry

# Concurrent reads: a fast disk needs several, and so does copying from the page cache (3 GB/s a thread).
NUM_THREADS = 8
CHUNK_BYTES = 16 * 2**20
MAX_BYTES_AHEAD = 2 * 2**30


@dataclass(slots=True)
class _Buffer:
    memory: Tensor  # [CHUNK_BYTES] uint8, pinned where the device is a GPU
    event: Event | None = field(default=None)  # end of the last copy out of the buffer


class WeightReader:
    """Reader that starts when it is constructed; `take` returns each tensor once. `close` it, after an error too."""

    def __init__(
        self,
        entries: Sequence[TensorEntry],
        *,
        device: torch.device,
        stream: Stream,
        num_threads: int = NUM_THREADS,
        chunk_bytes: int = CHUNK_BYTES,
        max_bytes_ahead: int = MAX_BYTES_AHEAD,
    ) -> None:
        """`entries`: in roughly the order of the `take` calls; a tensor taken out of order is read next."""
        self._device = device
        self._stream = stream
        self._chunk_bytes = chunk_bytes
        self._max_bytes_ahead = max_bytes_ahead
        self._tensors: dict[str, Future[Tensor]] = {entry.name: Future() for entry in entries}
        # Guards the four fields below, and signals their changes.
        self._changed = threading.Condition()
        self._waiting = {entry.name: (entry, self._tensors[entry.name]) for entry in entries}  # not yet read
        self._wanted_name = ""  # the tensor that `take` waits for
        self._bytes_ahead: dict[str, int] = {}  # bytes of tensors that are being read or wait to be taken
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._read_all, name=f"splitfuse-weights-{index}", daemon=True)
            for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def has(self, name: str) -> bool:
        """True if this tensor is being read ahead and has not been taken."""
        return name in self._tensors

    def take(self, name: str) -> Tensor:
        """Return the tensor on the device, complete for work queued on the stream from now on.

        Raises OSError, ValueError, and RuntimeError if it does not fit the device.
        """
        with self._changed:
            self._wanted_name = name
            self._changed.notify_all()
        try:
            return self._tensors.pop(name).result()
        finally:
            with self._changed:
                self._bytes_ahead.pop(name, None)
                self._changed.notify_all()

    def close(self) -> None:
        """Stop reading and free everything."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._tensors.clear()

    def _read_all(self) -> None:
        pinned = self._device.type == "cuda"
        if self._device.index is not None:
            torch.cuda.set_device(self._device)
        buffers = [_Buffer(torch.empty(self._chunk_bytes, dtype=torch.uint8, pin_memory=pinned)) for _ in range(2)]
        while self._read_next(buffers):
            pass

    def _read_next(self, buffers: list[_Buffer]) -> bool:
        """Read the next tensor; False if none is left. A function, so that a waiting thread holds no read tensor."""
        begun = self._begin()
        if begun is None:
            return False
        entry, future = begun
        try:
            future.set_result(self._read(entry, buffers))
        except Exception as exc:  # `take` raises it
            future.set_exception(exc)
        return True

    def _begin(self) -> "tuple[TensorEntry, Future[Tensor]] | None":
        """Return the tensor to read next, None at the end. Waits while too much has been read ahead."""
        with self._changed:
            while self._waiting and not self._is_closed:
                name = self._wanted_name if self._wanted_name in self._waiting else next(iter(self._waiting))
                num_bytes = self._waiting[name][0].num_bytes
                if name == self._wanted_name or sum(self._bytes_ahead.values()) + num_bytes <= self._max_bytes_ahead:
                    self._bytes_ahead[name] = num_bytes
                    return self._waiting.pop(name)
                self._changed.wait()
        return None

    def _read(self, entry: TensorEntry, buffers: list[_Buffer]) -> Tensor:
        whole = torch.empty(entry.num_bytes, dtype=torch.uint8, device=self._device)
        with entry.path.open("rb", buffering=0) as file:
            for begin in range(0, entry.num_bytes, self._chunk_bytes):
                if self._is_closed:
                    raise ValueError("reading was stopped")
                buffers.reverse()
                chunk = whole[begin : begin + self._chunk_bytes]
                self._read_chunk(file.fileno(), entry.offset + begin, chunk, buffers[0])
        return whole.view(entry.dtype).view(entry.shape)

    def _read_chunk(self, file: int, offset: int, chunk: Tensor, buffer: _Buffer) -> None:
        if buffer.event is not None:
            buffer.event.wait()
        memory = buffer.memory[: len(chunk)].numpy().data
        num_read = 0
        while num_read < len(chunk):
            count = os.preadv(file, [memory[num_read:]], offset + num_read)
            if not count:
                raise ValueError(f"the file ends {len(chunk) - num_read} bytes early")
            num_read += count
        self._stream.run(lambda: copy(chunk, buffer.memory[: len(chunk)]))
        buffer.event = self._stream.record()
