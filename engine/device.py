"""Stream: a device's queue of work, which is executed in the order in which it was submitted.

Work is a function over tensors. On a GPU the function only queues kernels and copies, so it is called at once and its
effects come later. Until an event recorded after the work has happened, the caller must not touch host memory that the
work reads or writes.
"""

from collections.abc import Callable
from typing import Protocol

import torch


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor to a device without waiting for earlier work: from pinned memory, because other copies wait."""
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor, as work of a stream."""
    target.copy_(source, non_blocking=True)


def host_tensor(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return memory of the host that the device can copy from and to."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


class Event(Protocol):
    """Point in a stream that is reached when all work before it is done."""

    def wait(self) -> None:
        """Wait until the event has happened. Raises the errors of the work before it."""


class Stream(Protocol):
    """Queue of work of one device."""

    def run(self, work: Callable[[], None]) -> None:
        """Submit work."""

    def record(self) -> Event:
        """Return an event after all work submitted so far."""


class _Happened:
    def wait(self) -> None:
        pass


class ImmediateStream:
    """Stream of a CPU, which does its work at once."""

    def run(self, work: Callable[[], None]) -> None:
        work()

    def record(self) -> Event:
        return _Happened()


class _CudaEvent:
    def __init__(self) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()  # lets other threads run meanwhile


class CudaStream:
    """Current CUDA stream of the thread that uses it.

    Copies and kernels share one stream. Separate streams would hide some 10 us of a step of milliseconds, and add the
    races of two more streams.
    """

    def run(self, work: Callable[[], None]) -> None:
        work()

    def record(self) -> Event:
        return _CudaEvent()


def stream_of(device: torch.device) -> Stream:
    """Return the stream on which the engine's steps run."""
    return CudaStream() if device.type == "cuda" else ImmediateStream()
