"""Layout of a KV cache in int8 with a scale for each KV head and token, a tensor [N, Hkv, S, D + 4].

A head's block holds its values [S][D] and, behind them, their scales [S] in float32; cpu/csrc/paged_cache.h has this
layout too. x ≈ value · scale with scale = max|x| / 127; a token that is not finite has the scale NaN.
"""

import torch
from torch import Tensor

from .quantize import round_rows

_SCALE_BYTES = 4


def token_width(head_dim: int, dtype: torch.dtype) -> int:
    """Return the number of elements that a token takes in one head of a cache of this dtype."""
    return head_dim + _SCALE_BYTES if dtype == torch.int8 else head_dim


def write(cache: Tensor, blocks: Tensor, offsets: Tensor, x: Tensor) -> None:
    """Write x [T, Hkv, D] of any float dtype to these blocks [T] and offsets [T]."""
    rounded, scales = round_rows(x.flatten(0, 1))
    scales = scales.masked_fill(~scales.isfinite(), torch.nan)
    values, scale_bytes = _parts(cache)
    values[blocks, :, offsets] = rounded.nan_to_num(0, 0, 0).to(torch.int8).view(x.shape)
    scale_bytes[blocks, :, offsets] = scales.view(torch.int8).view(*x.shape[:2], _SCALE_BYTES)


def read(cache: Tensor, *index: Tensor | slice) -> Tensor:
    """Return values [N, Hkv, S, D][index] of a cache [N, Hkv, S, D + 4], in float32."""
    values, scale_bytes = _parts(cache)
    return values[index].float() * scale_bytes[index].clone(memory_format=torch.contiguous_format).view(torch.float32)


def _parts(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Return views of the values [N, Hkv, S, D] and of the scales as bytes [N, Hkv, S, 4]: an odd D unaligns them."""
    *outer, block_size, width = cache.shape
    sizes = [block_size * (width - _SCALE_BYTES), block_size * _SCALE_BYTES]
    values, scales = torch.split(cache.view(*outer, -1), sizes, dim=-1)
    return values.view(*outer, block_size, -1), scales.view(*outer, block_size, -1)
