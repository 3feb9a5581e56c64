"""ForwardPlan: runs a decoder's layers in one native call if `ops.record` can make a plan of them, else op by op."""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ....kernels import ops
from .forward_inputs import Inputs
from .kv_cache import KVCache


class ForwardPlan:
    """Recorded plans of one model, one per KV cache. For one thread."""

    def __init__(
        self,
        run_layers: Callable[[Tensor, Inputs, KVCache], Tensor],
        *,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._run_layers = run_layers
        self._record = partial(ops.record, width=width, dtype=dtype, device=device)
        self._plans: WeakKeyDictionary[KVCache, Any] = WeakKeyDictionary()

    def run(self, x: Tensor, inputs: Inputs, kv_cache: KVCache) -> Tensor:
        """Run the layers on embedded tokens [T, hidden_size] and return hidden states [L, hidden_size]."""
        plan = self._plan(kv_cache)
        if isinstance(plan, str):
            return self._run_layers(x, inputs, kv_cache)
        return plan.run(x, ops.StepArrays(*inputs[1:]))  # type: ignore[no-any-return]

    def refusal(self, kv_cache: KVCache) -> str | None:
        """Return the reason why there is no plan for this cache; None if there is one."""
        plan = self._plan(kv_cache)
        return plan if isinstance(plan, str) else None

    def _plan(self, kv_cache: KVCache) -> Any:
        plan = self._plans.get(kv_cache)
        if plan is None:
            plan = self._record(lambda x, arrays: self._run_layers(x, Inputs(x, *arrays), kv_cache))
            self._plans[kv_cache] = plan
        return plan
