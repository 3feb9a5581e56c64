"""Products of latent attention, one for each head, in native ops; the reference for dtypes that the library lacks."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import reference
from ..arguments import CacheView
from . import build
from .linear import panels


class HeadWeights(NamedTuple):
    """A matrix for each head in the layout of `linear`, and its shape."""

    data: Tensor  # [heads, panels, …]
    num_outputs: int
    num_inputs: int


def pack_heads(weight: Tensor) -> HeadWeights | Tensor:
    if build.library() is None or weight.dtype not in build.DTYPES:
        return weight
    return HeadWeights(torch.stack([panels(head) for head in weight]), *weight.shape[1:])


def head_linear(x: Tensor, packed: HeadWeights | Tensor) -> Tensor:
    if isinstance(packed, Tensor):
        return reference.head_linear(x, packed)
    out = x.new_empty(*x.shape[:2], packed.num_outputs)
    _multiply(x, packed, out)
    return out


def latent_and_cache(
    q: Tensor, latent: Tensor, k: Tensor, positions: Tensor, slots: Tensor, cos_sin: Tensor, up: HeadWeights | Tensor,
    cache: CacheView,
) -> Tensor:  # fmt: skip
    if isinstance(up, Tensor):
        return reference.latent_and_cache(q, latent, k, positions, slots, cos_sin, up, cache)
    num_tokens, num_heads, width = q.shape
    rank, rotary = latent.shape[1], cos_sin.shape[1]
    out = q.new_empty(num_tokens, num_heads, rank + rotary)
    _multiply(q, up, out)
    _run("latent_and_cache", q)(
        q=q, latent=latent, k=k, out=out, cache=cache.keys, cos_sin=cos_sin, positions=positions, slots=slots,
        num_tokens=num_tokens, num_heads=num_heads, rank=rank, rotary=rotary, first=up.num_inputs,
        block_size=cache.keys.shape[2], q_token=q.stride(0), q_head=width, latent_token=latent.stride(0),
        k_token=k.stride(0), is_cache_int8=cache.keys.dtype == torch.int8,
    )  # fmt: skip
    return out


def _multiply(x: Tensor, packed: HeadWeights, out: Tensor) -> None:
    """Write the product of each head's first numbers to the first numbers of `out`."""
    _run("head_linear", x)(
        x=x, data=packed.data, out=out, num_tokens=len(x), num_heads=x.shape[1], num_inputs=packed.num_inputs,
        num_outputs=packed.num_outputs, x_token=x.stride(0), x_head=x.stride(1), out_token=out.stride(0),
        out_head=out.stride(1),
    )  # fmt: skip


def _run(name: str, x: Tensor) -> Callable[..., None]:
    run = build.op(name, build.DTYPES[x.dtype])
    assert run is not None
    return run
