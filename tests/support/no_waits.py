"""NoWaits: refuses what would wait for a GPU: values that are read back, or copied from a list on the host, and results
whose shape depends on values.

On a CPU nothing waits, so these are found by their operations. Tensors of the host's own memory are read by numpy,
which this mode does not see.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that read a value back, or the number of results of which depends on values.
_WAITING = {
    "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim",
    "bincount", "equal", "allclose",
}  # fmt: skip
_READERS = ("tolist", "item", "__bool__", "__int__", "__float__", "__index__")


class Wait(Exception):
    """An operation that would wait for the GPU."""


class NoWaits(TorchDispatchMode):
    """Raises Wait for such operations."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        by_lengths = name == "repeat_interleave" and (kwargs or {}).get("output_size") is None
        if name in _WAITING or by_mask or by_lengths:
            raise Wait(f"{func} waits for the GPU")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_waits() -> Iterator[None]:
    """Refuse waits in the block, also those by methods of tensors that dispatch nothing on a CPU."""
    tensor: Any = torch.Tensor
    originals = {name: getattr(tensor, name) for name in _READERS}
    makers = {name: getattr(torch, name) for name in ("tensor", "as_tensor")}

    def refusing(name: str) -> Callable[..., Any]:
        def refuse(self: torch.Tensor, *args: Any) -> Any:
            raise Wait(f"Tensor.{name} waits for the GPU")

        return refuse

    def on_host(name: str) -> Callable[..., Any]:
        def make(*args: Any, device: Any = None, **options: Any) -> Any:
            if device is not None:
                raise Wait(f"torch.{name} copies from memory that is not pinned, and waits for the GPU")
            return makers[name](*args, **options)

        return make

    for name in _READERS:
        setattr(tensor, name, refusing(name))
    for name in makers:
        setattr(torch, name, on_host(name))
    try:
        with NoWaits():
            yield
    finally:
        for name, original in originals.items():
            setattr(tensor, name, original)
        for name, original in makers.items():
            setattr(torch, name, original)
