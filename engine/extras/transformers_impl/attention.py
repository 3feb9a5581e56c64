"""Attention and mask functions registered with transformers; a context passes their calls to the running forward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

SERVED = "splitfuse"  # builds no mask, because the paged cache knows which tokens a query sees
PROBED = "splitfuse_probe"  # its masks are only described, by `Forward.mask`


class Forward(Protocol):
    """One forward pass through a model's modules."""

    def attend(self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, options: dict[str, Any]) -> Tensor:
        """Return [1, T, Hq, Dv] for rotated q [1, Hq, T, D], k [1, Hkv, T, D] and v [1, Hkv, T, Dv]."""

    def mask(self, mask_function: Callable[..., Any]) -> Any:
        """Return what the layers pass to `attend` as their mask."""


_running: ContextVar[Forward] = ContextVar("running")


@contextmanager
def running(forward: Forward) -> Iterator[None]:
    """Pass the attention calls of this thread to `forward` within the block."""
    token = _running.set(forward)
    try:
        yield
    finally:
        _running.reset(token)


def _attend(
    module: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    return _running.get().attend(module, q, k, v, attention_mask, options), None


def _mask(*args: Any, mask_function: Callable[..., Any], **options: Any) -> Any:
    return _running.get().mask(mask_function)


for _name in (SERVED, PROBED):
    AttentionInterface.register(_name, _attend)
AttentionMaskInterface.register(PROBED, _mask)
