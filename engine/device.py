"""Streams: a device's queue of work. Work given to a stream is done in the order in which it was given.

Work is a function over tensors. On a GPU it only queues kernels and copies, so it is called at once and its effects
come later; memory of the host that it reads or writes belongs to it until an event recorded after it has happened.
"""

from collections.abc import Callable
from typing import Protocol

import torch


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy there, without waiting for work given before: out of memory that is pinned, as other copies would."""
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Have this copied, as work of a stream."""
    target.copy_(source, non_blocking=True)


def host_tensor(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return memory of the host that the device can copy from and to."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


class Event(Protocol):
    """Happens when the work given before it has been done."""

    def wait(self) -> None:
        """Return when it has happened. Raises the errors of the work before it."""


class Stream(Protocol):
    """One queue."""

    def run(self, work: Callable[[], None]) -> None:
        """Have this done."""

    def record(self) -> Event:
        """An event after all that was given so far."""


class _Happened:
    def wait(self) -> None:
        pass


class ImmediateStream:
    """Does its work when it is given, as a CPU must."""

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
    """The current CUDA stream of the thread that uses it.

    Copies go the same way as kernels. Beside each other they would hide some 10 us of a step of milliseconds, for two
    more streams' worth of races.
    """

    def run(self, work: Callable[[], None]) -> None:
        work()

    def record(self) -> Event:
        return _CudaEvent()


def stream_of(device: torch.device) -> Stream:
    """The stream on which the engine's steps run."""
    return CudaStream() if device.type == "cuda" else ImmediateStream()
