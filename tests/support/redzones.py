"""Red zones: under Triton's interpreter every tensor of a launch lies between bytes that no kernel may touch.

They are 0xff: NaN in every float type, -1 as an integer. A write there is an error; a value read there makes a result
NaN or points far away. Operands keep their strides and offsets, so views of wider tensors stay what they are. Memory
that nothing has written is 0xff too: what comes from `torch.empty` has chance bytes otherwise, mostly zeros.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from triton.runtime.interpreter import GridExecutor

_tensor = torch.tensor  # no_waits.py replaces it
ZONE = 4096  # bytes on each side: more than a tile's row
Storages = dict[int, torch.UntypedStorage]  # by the address of the tensor's own storage


def install() -> None:
    """Put red zones around the operands of all launches of this process, and fill its uninitialized tensors."""
    GridExecutor._init_args_hst = _surrounded
    GridExecutor._restore_args_dev = _given_back
    with torch.device("cpu"):  # torch lists its own constructors at the first use of one in such a block
        torch.empty(0)
    torch.empty = _filled(torch.empty)
    torch.empty_like = _filled(torch.empty_like)
    torch.Tensor.new_empty = _filled(torch.Tensor.new_empty)


def _filled(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(make)
    def empty(*args: Any, **options: Any) -> torch.Tensor:
        tensor = make(*args, **options)
        if tensor.device.type == "cpu" and len(tensor.untyped_storage()):
            _bytes_of(tensor.untyped_storage()).fill_(0xFF)
        return tensor

    return empty


def _surrounded(self: Any, args: Iterable[Any], options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    storages: Storages = {}

    def surround(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        own = value.untyped_storage()
        if own.data_ptr() not in storages:
            storages[own.data_ptr()] = torch.UntypedStorage(len(own) + 2 * ZONE)
            whole = _bytes_of(storages[own.data_ptr()])
            whole.fill_(0xFF)
            whole[ZONE : ZONE + len(own)] = _bytes_of(own)
        offset = value.storage_offset() + ZONE // value.element_size()
        return value.new_empty(0).set_(storages[own.data_ptr()], offset, value.size(), value.stride())

    return [surround(value) for value in args], {name: surround(value) for name, value in options.items()}


def _given_back(self: Any, args: Any, copies: Any, options: dict[str, Any], option_copies: dict[str, Any]) -> None:
    pairs = [*zip(args, copies, strict=True), *((value, option_copies[name]) for name, value in options.items())]
    for value, copy in pairs:
        if isinstance(value, torch.Tensor):
            own, whole = _bytes_of(value.untyped_storage()), _bytes_of(copy.untyped_storage())
            zones = torch.cat([whole[:ZONE], whole[ZONE + len(own) :]])
            assert bool((zones == 0xFF).all()), f"{self.fn.__name__} wrote beside an operand {tuple(value.shape)}"
            own.copy_(whole[ZONE : ZONE + len(own)])


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return _tensor([], dtype=torch.uint8, device="cpu").set_(storage)
