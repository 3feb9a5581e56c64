"""Memory of all tensors that an object holds, found by following references."""

import gc
from types import FunctionType, ModuleType

import torch

from splitfuse.engine.execution.models.forward_plan import ForwardPlan


def held_bytes(root: object) -> int:
    """Return the bytes of all storages, counted once; a plan's are left out, because layers hold its weights, too."""
    seen: set[int] = set()
    storages: dict[int, int] = {}
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, type | FunctionType | ModuleType | ForwardPlan):
            continue
        seen.add(id(found))
        if not isinstance(found, torch.Tensor):
            waiting.extend(gc.get_referents(found))
        elif found.layout is torch._mkldnn:  # type: ignore[attr-defined]  # whose storage cannot be seen
            storages[id(found)] = found.numel() * found.itemsize
        else:
            storages[found.untyped_storage().data_ptr()] = found.untyped_storage().nbytes()
    return sum(storages.values())
