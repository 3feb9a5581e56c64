"""WeightReader: tensors of safetensors files on their way to a device, read by threads ahead of who takes them.

A thread reads a tensor piece by piece into one of its two pinned buffers, while the device copies the other one. Copies
are given to the stream on which the tensors are used, so nobody waits for them, and a piece of memory that was let go
of is not written before those who read it have done so. A tensor is held until it is taken, and no longer.

File format: 8 bytes of little-endian header length, a JSON header of {name: dtype, shape, data_offsets}, the bytes
(https://github.com/huggingface/safetensors#format).
"""

import json
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..device import Event, Stream
from ..errors import ConfigError

# Reads under way together; a fast disk wants several, and so does the kernel's copy out of its cache (3 GB/s a thread).
NUM_THREADS = 8
PIECE_BYTES = 16 * 2**20
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor stands in a file."""

    path: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int  # bytes from the file's beginning
    num_bytes: int


def tensor_places(path: Path) -> Iterator[TensorPlace]:
    """The floating point tensors of a file, in the order of their bytes. Raises ConfigError if it is not whole."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if header_bytes > _MAX_HEADER_BYTES:
                raise ValueError(f"a header of {header_bytes} bytes")
            header = json.loads(file.read(header_bytes))
            size = os.fstat(file.fileno()).st_size - 8 - header_bytes
        header.pop("__metadata__", None)
        entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        for name, entry in entries:
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= size:
                raise ValueError(f"{name} ends at byte {end} of {size}")
            dtype = _DTYPES.get(entry["dtype"])
            if dtype is not None:
                place = TensorPlace(path, name, dtype, tuple(entry["shape"]), 8 + header_bytes + begin, end - begin)
                if torch.Size(place.shape).numel() * dtype.itemsize != place.num_bytes:
                    raise ValueError(f"{name} has {place.num_bytes} bytes and shape {list(place.shape)}")
                yield place
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise ConfigError(f"{path} is not a whole safetensors file ({exc}); fetch the file again") from exc


@dataclass(slots=True)
class _Buffer:
    memory: Tensor  # [PIECE_BYTES] uint8, pinned where the device is a GPU
    event: Event | None = field(default=None)  # behind the copy out of it


class WeightReader:
    """Begins to read when it is made; `take` gives each tensor once. `close` it, also if something went wrong."""

    def __init__(
        self,
        places: Sequence[TensorPlace],
        *,
        device: torch.device,
        stream: Stream,
        num_threads: int = NUM_THREADS,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._device = device
        self._stream = stream
        self._piece_bytes = piece_bytes
        self._tensors: dict[str, Future[Tensor]] = {place.name: Future() for place in places}
        self._left = iter([(place, self._tensors[place.name]) for place in places])
        self._lock = threading.Lock()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._read_all, name=f"splitfuse-weights-{index}", daemon=True)
            for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def has(self, name: str) -> bool:
        """Whether this tensor is on its way and nobody has taken it."""
        return name in self._tensors

    def take(self, name: str) -> Tensor:
        """The tensor on the device, whole for work given to the stream from now on. Raises OSError, ValueError."""
        return self._tensors.pop(name).result()

    def close(self) -> None:
        """Stop reading and let go of everything."""
        self._is_closed = True
        for thread in self._threads:
            thread.join()
        self._tensors.clear()

    def _read_all(self) -> None:
        pinned = self._device.type == "cuda"
        if self._device.index is not None:
            torch.cuda.set_device(self._device)
        buffers = [_Buffer(torch.empty(self._piece_bytes, dtype=torch.uint8, pin_memory=pinned)) for _ in range(2)]
        while not self._is_closed:
            with self._lock:
                place, future = next(self._left, (None, None))
            if place is None or future is None:
                return
            try:
                future.set_result(self._read(place, buffers))
            except Exception as exc:  # whoever takes it is told
                future.set_exception(exc)

    def _read(self, place: TensorPlace, buffers: list[_Buffer]) -> Tensor:
        whole = torch.empty(place.num_bytes, dtype=torch.uint8, device=self._device)
        with place.path.open("rb", buffering=0) as file:
            for begin in range(0, place.num_bytes, self._piece_bytes):
                if self._is_closed:
                    raise ValueError("reading was stopped")
                buffers.reverse()
                piece = whole[begin : begin + self._piece_bytes]
                self._read_piece(file.fileno(), place.offset + begin, piece, buffers[0])
        return whole.view(place.dtype).view(place.shape)

    def _read_piece(self, file: int, offset: int, piece: Tensor, buffer: _Buffer) -> None:
        if buffer.event is not None:
            buffer.event.wait()
        memory = buffer.memory[: len(piece)].numpy().data
        done = 0
        while done < len(piece):
            count = os.preadv(file, [memory[done:]], offset + done)
            if not count:
                raise ValueError(f"the file ends {len(piece) - done} bytes early")
            done += count
        self._stream.run(lambda: _copy(piece, buffer.memory[: len(piece)]))
        buffer.event = self._stream.record()


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)
