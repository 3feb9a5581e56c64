"""CPU backend in torch ops, for machines without a C++ compiler and for dtypes that the native library lacks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import int8_cache
from ..arguments import AttentionArgs, CacheView, RaggedBatch, RopeArgs


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    if weight.dtype != x.dtype:
        return F.rms_norm(x.to(weight.dtype), (x.shape[-1],), weight, eps).to(x.dtype)
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    residual = residual + x
    return rms_norm(residual, weight, eps=eps), residual


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    residual = residual + x
    return layer_norm(residual, weight, bias, eps=eps), residual


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def activation(x: Tensor, kind: str) -> Tensor:
    if kind.startswith("relu"):
        return F.relu(x) if kind == "relu" else F.relu(x).square_()
    return x.tanh() if kind == "tanh" else F.gelu(x, approximate="none" if kind == "gelu" else "tanh")


def softcap(x: Tensor, cap: float) -> Tensor:
    return (x / cap).tanh_().mul_(cap)


def rope_and_cache(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, slot_mapping: Tensor, rope: RopeArgs, cache: CacheView
) -> Tensor:
    if rope.q_norm is not None:
        q = rms_norm(q, rope.q_norm, eps=rope.eps)
    if rope.k_norm is not None:
        k = rms_norm(k, rope.k_norm, eps=rope.eps)
    if rope.v_norm is not None:
        v = rms_norm(v, rope.v_norm, eps=rope.eps)
    cos, sin = rope.cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    q, k = _rotate(q, cos, sin).to(q.dtype), _rotate(k, cos, sin)
    kept = slot_mapping >= 0
    if not bool(kept.all()):
        slot_mapping, k, v = slot_mapping[kept], k[kept], v[kept]
    block_size = cache.keys.shape[2]
    blocks, offsets = slot_mapping // block_size, slot_mapping % block_size
    for each, x in ((cache.keys, k), (cache.values, v)):
        if each.dtype == torch.int8:
            int8_cache.write(each, blocks, offsets, x)
        else:
            each[blocks, :, offsets] = x.to(each.dtype)
    return q


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x in float32."""
    half = cos.shape[-1]
    x1, x2, rest = torch.split(x.float(), [half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin, rest), dim=-1)


def paged_attention(q: Tensor, cache: CacheView, ragged: RaggedBatch, args: AttentionArgs) -> Tensor:
    """Attend one row at a time: gather its keys and values, then SDPA, which does not expand grouped heads."""
    out = torch.empty(*q.shape[:2], args.value_dim or q.shape[2], dtype=q.dtype)
    starts, window, block_size = ragged.query_start_loc.tolist(), args.sliding_window, cache.keys.shape[2]
    for row, length in enumerate(ragged.seq_lens.tolist()):
        tokens = slice(starts[row], starts[row + 1])
        query_len = tokens.stop - tokens.start
        first = max(0, length - query_len - window + 1) // block_size if window else 0
        blocks = ragged.block_tables[row, first : -(-length // block_size)]
        seen = length - first * block_size
        # Cut at the row's length: slots beyond it may hold anything, and a mask does not stop a NaN.
        keys, values = (_read(part, blocks).transpose(0, 1).flatten(1, 2)[:, :seen] for part in cache[:2])
        values = values[..., : out.shape[2]]
        mask = _mask(query_len, seen, window, args.lookahead)
        if args.softcap or args.sinks is not None:
            out[tokens] = _attend_in_float32(q[tokens], keys, values, mask, args)
            continue
        attended = F.scaled_dot_product_attention(
            q[tokens].transpose(0, 1)[None].to(keys.dtype),
            keys[None],
            values[None],
            attn_mask=mask,
            is_causal=mask is None and 1 < query_len == seen and not args.lookahead,
            scale=args.scale,
            enable_gqa=True,
        )
        out[tokens] = attended[0].transpose(0, 1)
    return out


def _read(cache: Tensor, blocks: Tensor) -> Tensor:
    return int8_cache.read(cache, blocks) if cache.dtype == torch.int8 else cache[blocks]


def _attend_in_float32(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, args: AttentionArgs) -> Tensor:
    """Attend with a soft-cap or sinks, which SDPA lacks: in bfloat16 scores near the cap would be off by a quarter.

    q [n, Hq, D], keys and values [Hkv, L, D] → [n, Hq, D]. One KV head at a time: all scores of 512 tokens after 8,000
    would be 270 MB for 16 heads.
    """
    num_tokens, num_kv_heads = len(q), len(keys)
    if mask is None:  # every position is visible, or causally
        mask = torch.ones(num_tokens, keys.shape[1], dtype=torch.bool).tril(keys.shape[1] - num_tokens + args.lookahead)
    grouped = q.view(num_tokens, num_kv_heads, -1, q.shape[2])
    out = torch.empty(*grouped.shape[:3], values.shape[2], dtype=q.dtype)
    for head in range(num_kv_heads):
        scores = grouped[:, head].transpose(0, 1).float() @ keys[head].float().T
        if args.softcap:
            scores.mul_(args.scale / args.softcap).tanh_().mul_(args.softcap)
        else:
            scores.mul_(args.scale)
        scores.masked_fill_(~mask, float("-inf"))
        if args.sinks is not None:
            sinks = args.sinks.view(num_kv_heads, -1)[head, :, None, None].expand(-1, num_tokens, 1)
            scores = torch.cat((scores, sinks), dim=-1)
        weights = scores.softmax(dim=-1)[..., : keys.shape[1]]
        out[:, head] = (weights @ values[head].float()).transpose(0, 1)
    return out.flatten(1, 2)


def _mask(query_len: int, length: int, sliding_window: int, lookahead: int) -> Tensor | None:
    """Return which of `length` positions the last `query_len` see, [query_len, length] bool; None: all, or causal."""
    if not sliding_window and (query_len in (1, length) if not lookahead else lookahead >= length):
        return None
    position = torch.arange(length - query_len, length)[:, None]
    key = torch.arange(length)
    mask = key <= position + lookahead
    return mask & (key > position - sliding_window) if sliding_window else mask
