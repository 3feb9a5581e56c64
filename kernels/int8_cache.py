"""Keys or values rounded to int8, with a scale for each KV head and token: how a tensor [N, Hkv, S, D + 4] holds them.

A head's block is its values [S][D] and, behind them, their scales [S], float32. cpu/csrc/paged_cache.h says the same.
x ≈ value · scale with scale = max|x| / 127; a token that is not finite has the scale NaN.
"""

import torch
from torch import Tensor

from .quantize import round_rows

_SCALE_BYTES = 4


def token_width(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of a cache of this dtype that a token takes of a head."""
    return head_dim + _SCALE_BYTES if dtype == torch.int8 else head_dim


def write(cache: Tensor, blocks: Tensor, offsets: Tensor, x: Tensor) -> None:
    """x [T, Hkv, D] of any float dtype to these blocks and offsets, [T] each."""
    rounded, scales = round_rows(x.flatten(0, 1))
    scales = scales.masked_fill(~scales.isfinite(), torch.nan)
    values, scale_bytes = _parts(cache)
    values[blocks, :, offsets] = rounded.nan_to_num(0, 0, 0).to(torch.int8).view(x.shape)
    scale_bytes[blocks, :, offsets] = scales.view(torch.int8).view(*x.shape[:2], _SCALE_BYTES)


def read(cache: Tensor, *index: Tensor | slice) -> Tensor:
    """Values [N, Hkv, S, D][index] of a cache [N, Hkv, S, D + 4], in float32."""
    values, scale_bytes = _parts(cache)
    return values[index].float() * scale_bytes[index].clone(memory_format=torch.contiguous_format).view(torch.float32)


def _parts(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Views: the values [N, Hkv, S, D]; the scales, as bytes [N, Hkv, S, 4], for an odd D leaves them unaligned."""
    *outer, block_size, width = cache.shape
    sizes = [block_size * (width - _SCALE_BYTES), block_size * _SCALE_BYTES]
    values, scales = torch.split(cache.view(*outer, -1), sizes, dim=-1)
    return values.view(*outer, block_size, -1), scales.view(*outer, block_size, -1)
