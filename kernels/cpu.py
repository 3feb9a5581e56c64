"""The CPU backend: torch ops, and the native library where it could be built. Shapes are in ops.py."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .ops import RaggedBatch
from .reference import copy_blocks as copy_blocks


class PackedLinear:
    """A weight laid out once for oneDNN, which otherwise reorders it at every call."""

    __slots__ = ("bias", "packed", "plain")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.bias = bias
        self.packed: Tensor | None = None
        self.plain: Tensor | None = None
        if weight.dtype == torch.bfloat16 and torch.backends.mkldnn.is_available():
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        else:
            self.plain = weight.contiguous()


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    return PackedLinear(weight, bias)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    if packed.plain is not None:
        return F.linear(x, packed.plain, packed.bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed.packed, packed.bias, "none", [], "")
    return out


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    residual = residual + x
    return rms_norm(residual, weight, eps=eps), residual


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rope_and_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    if q_norm is not None:
        q = rms_norm(q, q_norm, eps=eps)
    if k_norm is not None:
        k = rms_norm(k, k_norm, eps=eps)
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    block_size = k_cache.shape[2]
    kept = slot_mapping >= 0
    if not bool(kept.all()):
        slot_mapping, k, v = slot_mapping[kept], k[kept], v[kept]
    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    k_cache[blocks, :, offsets] = k
    v_cache[blocks, :, offsets] = v
    return q


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    x1, x2, rest = x.float().split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin, rest), dim=-1).to(x.dtype)


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, ragged: RaggedBatch, *, scale: float, sliding_window: int = 0
) -> Tensor:
    """Row by row: gather the row's keys and values, then SDPA, which keeps grouped heads unexpanded."""
    out = torch.empty_like(q)
    starts, lengths = ragged.query_start_loc.tolist(), ragged.seq_lens.tolist()
    block_size = k_cache.shape[2]
    for row, length in enumerate(lengths):
        tokens = slice(starts[row], starts[row + 1])
        blocks = ragged.block_tables[row, : -(-length // block_size)]
        keys, values = (cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length] for cache in (k_cache, v_cache))
        mask = _mask(tokens.stop - tokens.start, length, sliding_window)
        attended = F.scaled_dot_product_attention(
            q[tokens].transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, scale=scale, enable_gqa=True
        )
        out[tokens] = attended[0].transpose(0, 1)
    return out


def _mask(query_len: int, length: int, sliding_window: int) -> Tensor | None:
    """Which cached positions each query sees, [query_len, length] bool; None = all."""
    if query_len == 1 and not 0 < sliding_window < length:
        return None
    position = torch.arange(length - query_len, length)[:, None]
    key = torch.arange(length)
    mask = key <= position
    return mask & (key > position - sliding_window) if sliding_window else mask
