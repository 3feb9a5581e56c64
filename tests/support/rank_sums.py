"""Sums over ranks that are threads: their terms, and the sum in the order of the ranks that they are compared with."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


def on_all(ranks: list[Any], call: Callable[[Any, int], Any]) -> list[Any]:
    """Call with (rank, its number) in a thread for each rank; return the results in the order of the ranks."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(call, ranks, range(len(ranks))))


def terms_of(num: int, *shape: int, dtype: torch.dtype) -> list[Tensor]:
    """Return `num` normal tensors, of seeds 0, 1, …"""
    return [torch.randn(shape, generator=torch.Generator().manual_seed(n)).to(dtype) for n in range(num)]


def in_order(terms: list[Tensor]) -> Tensor:
    """Add one term after the other in float32, and round once."""
    total = terms[0].float()
    for term in terms[1:]:
        total = total + term.float()
    return total.to(terms[0].dtype)
