"""Blocks that leave the device and come back, a block at a time and without a wait."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from splitfuse.engine.execution.models import host_blocks
from splitfuse.engine.execution.models.host_blocks import HostBlocks

BLOCK = (2, 4, 8)  # heads, tokens, head size


def caches(dtype: torch.dtype) -> list[torch.Tensor]:
    numbers = torch.arange(3 * 10 * 64).view(3, 10, *BLOCK) % 251
    return [tensor.to(torch.uint8).view(dtype) if dtype.itemsize == 1 else tensor.to(dtype) for tensor in numbers]


class Copies(TorchDispatchMode):
    """Recorder of the bytes that copies move, and whether a copy is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() == "aten::copy_":
            target, source, *rest = args
            assert target.is_contiguous(), "a piece is one run of memory at both ends"
            assert source.is_contiguous()
            self.calls.append((target.numel(), (rest or [(kwargs or {}).get("non_blocking", False)])[0]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_blocks_come_back_as_they_left(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    block_bytes = 3 * 64 * dtype.itemsize
    monkeypatch.setattr(host_blocks, "_PIECE_BYTES", 4 * block_bytes)
    monkeypatch.setattr(host_blocks, "_STAGED_BYTES", 2 * block_bytes)
    device = caches(dtype)
    host = HostBlocks(device, 9)
    assert [len(piece) for piece in host.pieces] == [4, 4, 1]
    host.swap_out([(1, 8), (2, 0), (5, 3), (9, 4), (0, 7)])
    expected = [cache.clone() for cache in device]
    for cache in device:
        cache.view(torch.uint8).zero_()
    host.swap_in([(8, 6), (0, 1), (3, 2), (4, 0), (7, 3)])
    for now, before in zip(device, expected, strict=True):
        moved = now.view(torch.uint8)[[6, 1, 2, 0, 3]]
        assert torch.equal(moved, before.view(torch.uint8)[[1, 2, 5, 9, 0]])
        assert not now.view(torch.uint8)[[4, 5, 7, 8, 9]].any(), "no other block is written"


def test_a_block_of_all_layers_is_one_copy_that_is_not_waited_for() -> None:
    host = HostBlocks(caches(torch.float32), 4)
    for move in (host.swap_out, host.swap_in):
        with Copies() as copies:
            move([(1, 0), (3, 2), (0, 1)])
        assert copies.calls == [(3 * 64, True)] * 3
