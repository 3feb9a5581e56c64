"""Reference backend: every op of `ops` in plain torch, for any device and dtype. The oracle of all kernel tests.

Computes in float32, or in float64 if the input is float64. On the meta device results are shapes only.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import int8_cache
from .altup import altup_correct as altup_correct
from .altup import altup_predict as altup_predict
from .altup import match_rms as match_rms
from .altup import sparse_gelu_mul as sparse_gelu_mul
from .arguments import (
    SWIGLU_EXPERTS,
    AdapterPlace,
    AttentionArgs,
    CacheView,
    ExpertArgs,
    ExpertWeights,
    RaggedBatch,
    RopeArgs,
    RouteArgs,
)
from .quantize import E4M3_MAX, QuantizedWeight, can_quantize, dequantized, quantize, round_rows, rounded_to_e4m3
from .quantize import unpack_codes as unpack_codes
from .recurrence import gate_mul as gate_mul
from .recurrence import gated_delta as gated_delta
from .recurrence import gated_rms_norm as gated_rms_norm
from .recurrence import mamba2 as mamba2
from .recurrence import short_conv as short_conv


def prepare() -> None:
    """Do nothing: there is nothing to prepare."""


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    wide = x.to(_compute_dtype(x))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.to(wide.dtype)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    residual = x + residual
    return rms_norm(residual, weight, eps=eps), residual


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float) -> Tensor:
    wide = x.to(_compute_dtype(x))
    centred = wide - wide.mean(dim=-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps) * weight.to(wide.dtype)
    return (normed if bias is None else normed + bias.to(wide.dtype)).to(x.dtype)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    residual = x + residual
    return layer_norm(residual, weight, bias, eps=eps), residual


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.to(_compute_dtype(gate_up)).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    wide = x.to(_compute_dtype(x))
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    return (0.5 * wide * (1.0 + torch.tanh(inner))).to(x.dtype)


def clamped_swiglu(gate_up: Tensor, *, limit: float) -> Tensor:
    """gate · sigmoid(1.702 · gate) · (up + 1), with gate at most `limit` and up within ±limit (OpenAI 2025)."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-limit, limit) + 1)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.to(_compute_dtype(gate_up)).chunk(2, dim=-1)
    return (gelu_tanh(gate) * up).to(gate_up.dtype)


def gelu(x: Tensor) -> Tensor:
    wide = x.to(_compute_dtype(x))
    return (0.5 * wide * (1.0 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)


def relu_squared(x: Tensor) -> Tensor:
    return x.to(_compute_dtype(x)).clamp(min=0).square().to(x.dtype)


def activation(x: Tensor, kind: str) -> Tensor:
    return _ACTIVATIONS[kind](x)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu, "gelu_tanh": gelu_tanh, "relu": torch.relu, "relu_squared": relu_squared, "tanh": torch.tanh,
}  # fmt: skip


def softcap(x: Tensor, cap: float) -> Tensor:
    return (cap * torch.tanh(x.to(_compute_dtype(x)) / cap)).to(x.dtype)


def _rotate(x: Tensor, cos_sin: Tensor, positions: Tensor) -> Tensor:
    """Rotate x [T, heads, D] by the angles of its tokens' positions; dimensions from R on do not change."""
    rotary_dim = cos_sin.shape[1]
    cos, sin = cos_sin[positions].to(x.dtype)[:, None].chunk(2, dim=-1)
    x1, x2 = x[..., :rotary_dim].chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin, x[..., rotary_dim:]), dim=-1)


def _write(cache: Tensor, x: Tensor, slot_mapping: Tensor, scales: Tensor | None) -> None:
    if cache.is_meta:
        return  # only data tell which tokens have a slot
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block_size = cache.shape[2]
    if cache.dtype == torch.int8:
        int8_cache.write(cache, slots // block_size, slots % block_size, x[kept])
        return
    if scales is not None:
        x = x / scales[:, None].to(x.dtype)
    if cache.dtype == torch.float8_e4m3fn:
        x = x.clamp(-E4M3_MAX, E4M3_MAX).to(cache.dtype).view(torch.uint8)
        cache = cache.view(torch.uint8)
    cache[slots // block_size, :, slots % block_size] = x[kept].to(cache.dtype)


def _read(cache: Tensor, blocks: Tensor, offsets: Tensor, scales: Tensor | None) -> Tensor:
    """Read the slots at (block, offset): [L, Hkv, D]."""
    if cache.dtype == torch.float8_e4m3fn:
        read = cache.view(torch.uint8)[blocks, :, offsets].view(cache.dtype).float()
        return read if scales is None else read * scales[:, None]
    if cache.dtype == torch.int8:
        return int8_cache.read(cache, blocks, slice(None), offsets)
    return cache[blocks, :, offsets]


def rope_and_cache(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, slot_mapping: Tensor, rope: RopeArgs, cache: CacheView
) -> Tensor:
    wide_q, wide_k = q.to(_compute_dtype(q)), k.to(_compute_dtype(k))
    if rope.q_norm is not None:
        wide_q = rms_norm(wide_q, rope.q_norm, eps=rope.eps)
    if rope.k_norm is not None:
        wide_k = rms_norm(wide_k, rope.k_norm, eps=rope.eps)
    if rope.v_norm is not None:
        v = rms_norm(v, rope.v_norm, eps=rope.eps)
    k_scales, v_scales = (None, None) if cache.scales is None else cache.scales
    _write(cache.keys, _rotate(wide_k, rope.cos_sin, positions), slot_mapping, k_scales)
    _write(cache.values, v, slot_mapping, v_scales)
    return _rotate(wide_q, rope.cos_sin, positions).to(q.dtype)


def rotate(x: Tensor, positions: Tensor, rope: RopeArgs) -> Tensor:
    wide = x.to(_compute_dtype(x))
    if rope.q_norm is not None:
        wide = rms_norm(wide, rope.q_norm, eps=rope.eps)
    return _rotate(wide, rope.cos_sin, positions).to(x.dtype)


def _attend(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, args: AttentionArgs) -> Tensor:
    """softmax(scale · q kᵀ) v of each head: q [n, Hq, D], keys and values [L, Hkv, D], visible [n, L] → [n, Hq, D].

    One KV head at a time: all scores of 512 tokens after 8,000 would be 270 MB for 16 heads.
    """
    group, dtype = q.shape[1] // keys.shape[1], _compute_dtype(q)
    grouped = q.reshape(len(q), keys.shape[1], group, q.shape[2])
    outputs = []
    for head in range(keys.shape[1]):
        scores = torch.einsum("ngd,ld->gnl", grouped[:, head].to(dtype), keys[:, head].to(dtype)) * args.scale
        if args.softcap:
            scores = softcap(scores, args.softcap)
        scores = scores.masked_fill(~visible, float("-inf"))
        if args.sinks is not None:
            sinks = args.sinks.view(-1, group)[head].to(dtype)[:, None, None].expand(-1, len(q), 1)
            scores = torch.cat((scores, sinks), dim=-1)
        weights = scores.softmax(dim=-1)[..., : len(keys)]
        outputs.append(torch.einsum("gnl,ld->ngd", weights, values[:, head, : args.value_dim or None].to(dtype)))
    return torch.cat(outputs, dim=1).to(q.dtype)


def paged_attention(q: Tensor, cache: CacheView, ragged: RaggedBatch, args: AttentionArgs) -> Tensor:
    out = q.new_empty(*q.shape[:2], args.value_dim or q.shape[2])
    k_scales, v_scales = (None, None) if cache.scales is None else cache.scales
    if q.is_meta:
        return out
    block_size = cache.keys.shape[2]
    starts, seq_lens = ragged.query_start_loc.tolist(), ragged.seq_lens.tolist()
    for row, (start, end, seq_len) in enumerate(zip(starts, starts[1:], seq_lens, strict=False)):
        # Positions: [0, first) outside every window | [first, seq_len) read, the last `end - start` are the queries'.
        positions = torch.arange(seq_len - (end - start), seq_len, device=q.device)
        oldest = (positions - args.sliding_window + 1).clamp(min=0) if args.sliding_window else positions * 0
        first = int(oldest[0]) if end > start else seq_len
        cached = torch.arange(first, seq_len, device=q.device)
        visible = (cached <= positions[:, None] + args.lookahead) & (cached >= oldest[:, None])
        blocks, offsets = ragged.block_tables[row, cached // block_size].long(), cached % block_size
        keys, values = _read(cache.keys, blocks, offsets, k_scales), _read(cache.values, blocks, offsets, v_scales)
        out[start:end] = _attend(q[start:end], keys, values, visible, args)
    return out


def pack_heads(weight: Tensor) -> Tensor:
    return weight


def head_linear(x: Tensor, packed: Tensor) -> Tensor:
    return torch.einsum("thk,hnk->thn", x.to(_compute_dtype(x)), packed.to(_compute_dtype(x))).to(x.dtype)


def latent_and_cache(
    q: Tensor, latent: Tensor, k: Tensor, positions: Tensor, slots: Tensor, cos_sin: Tensor, up: Tensor,
    cache: CacheView,
) -> Tensor:  # fmt: skip
    inner, wide = up.shape[2], _compute_dtype(q)
    turned_q, turned_k = (_rotate(x.to(wide), cos_sin, positions) for x in (q[..., inner:], k[:, None]))
    _write(cache.keys, torch.cat((latent[:, None].to(wide), turned_k), dim=-1), slots, None)
    return torch.cat((head_linear(q[..., :inner], up), turned_q.to(q.dtype)), dim=-1)


def copy_blocks(caches: list[Tensor], source: Tensor, target: Tensor) -> None:
    for cache in caches:
        cache[target] = cache[source]


class PackedLinear(NamedTuple):
    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]
    rounds_inputs: bool = False  # see QuantizedWeight


def pack_linear(weight: Tensor, bias: Tensor | None = None, *, bits: int = 16, input_bits: int = 16) -> PackedLinear:
    """Pack a weight; `input_bits` has no effect, because inputs are never rounded for speed."""
    if bits < 16 and can_quantize(weight, bits):
        weight = quantize(weight, bits).dequantized().to(weight.dtype)
    return PackedLinear(weight, bias)


def pack_quantized(
    parts: Sequence[QuantizedWeight], bias: Tensor | None = None, *, dtype: torch.dtype, input_bits: int = 16
) -> PackedLinear:
    assert len({part.rounds_inputs for part in parts}) == 1
    return PackedLinear(dequantized(parts, dtype), bias, parts[0].rounds_inputs)


def pack_fp8(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    return pack_linear(rounded_to_e4m3(weight), bias)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    if packed.rounds_inputs:
        values, scales = round_rows(x)
        x = (values * scales).to(x.dtype)
    return F.linear(x, packed.weight, packed.bias)


def pack_embedding(weight: QuantizedWeight, *, dtype: torch.dtype, input_bits: int = 16) -> PackedLinear:
    return pack_quantized([weight], dtype=dtype)


def embedding(token_ids: Tensor, packed: PackedLinear) -> Tensor:
    return packed.weight.index_select(0, token_ids)


def linear_silu_mul(x: Tensor, packed: PackedLinear) -> Tensor:
    return silu_mul(linear(x, packed))


def route(router_logits: Tensor, args: RouteArgs, slot_mapping: Tensor | None = None) -> tuple[Tensor, Tensor]:
    wide = router_logits.to(_compute_dtype(router_logits))
    if args.jitter:
        return _route_by_sparsemixer(wide, args)
    scores = _sigmoid(wide) if args.is_sigmoid else wide.softmax(dim=-1)
    choice = scores if args.bias is None else scores + args.bias
    ids = _in_groups(choice, args).topk(args.top_k, dim=-1).indices
    weights = scores.gather(1, ids)
    if args.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * args.scale, ids.to(torch.int32)


def _route_by_sparsemixer(logits: Tensor, args: RouteArgs) -> tuple[Tensor, Tensor]:
    left, weights, ids = logits, [], []
    for _ in range(args.top_k):
        largest, best = left.max(dim=-1, keepdim=True)
        is_far = (largest - logits) / torch.maximum(logits.abs(), largest) > 2 * args.jitter
        weights.append(left.masked_fill(is_far, float("-inf")).softmax(dim=-1).gather(1, best))
        ids.append(best)
        left = left.scatter(1, best, float("-inf"))
    return torch.cat(weights, dim=1) * args.scale, torch.cat(ids, dim=1).to(torch.int32)


def _in_groups(choice: Tensor, args: RouteArgs) -> Tensor:
    """Return the scores with -inf for experts outside the token's groups."""
    if args.num_groups == 1:
        return choice
    groups = choice.view(len(choice), args.num_groups, -1)
    kept = groups.topk(args.num_group_scores, dim=-1).values.sum(-1).topk(args.num_kept_groups, dim=-1).indices
    is_kept = torch.zeros(groups.shape[:2], dtype=torch.bool, device=choice.device).scatter_(1, kept, True)
    return groups.masked_fill(~is_kept[:, :, None], float("-inf")).flatten(1)


def _sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)) as a softmax over (x, 0): torch's sigmoid has other bits in the last elements of a batch."""
    return torch.stack((x, torch.zeros_like(x)), dim=-1).softmax(dim=-1)[..., 0]


def add_gated(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(x, _sigmoid(gate), y)


class Expert(NamedTuple):
    gate_up: PackedLinear
    down: PackedLinear
    args: ExpertArgs = SWIGLU_EXPERTS


def activate(gate_up: Tensor, args: ExpertArgs) -> Tensor:
    """Apply an expert's activation to its first product."""
    if not args.is_gated:
        return relu_squared(gate_up)
    if args.limit:
        return clamped_swiglu(gate_up, limit=args.limit)
    return gelu_tanh_mul(gate_up) if args.is_gelu else silu_mul(gate_up)


def pack_experts(
    experts: Iterable[ExpertWeights], *, num_experts: int, dtype: torch.dtype, bits: int = 16, input_bits: int = 16,
    is_fp8: bool = False, args: ExpertArgs = SWIGLU_EXPERTS,
) -> list[Expert]:  # fmt: skip
    def pack(parts: Sequence[Tensor | QuantizedWeight], bias: Tensor | None) -> PackedLinear:
        quantized = [part for part in parts if isinstance(part, QuantizedWeight)]
        if len(quantized) == len(parts):
            return pack_quantized(quantized, bias, dtype=dtype)
        weight = torch.cat([part if isinstance(part, Tensor) else dequantized([part], dtype) for part in parts])
        return pack_fp8(weight, bias) if is_fp8 else pack_linear(weight, bias, bits=bits)

    packed = [
        Expert(pack(expert.gate_up, expert.gate_up_bias), pack([expert.down], expert.down_bias), args)
        for expert in experts
    ]
    assert len(packed) == num_experts
    return packed


def experts(x: Tensor, weights: Tensor, expert_ids: Tensor, packed: list[Expert]) -> Tensor:
    if x.is_meta:
        return torch.empty_like(x)  # only data tell which token goes to which expert
    out = torch.zeros_like(x, dtype=_compute_dtype(x))
    for token, (token_weights, token_ids) in enumerate(zip(weights, expert_ids.tolist(), strict=True)):
        for weight, expert in zip(token_weights, token_ids, strict=True):
            mlp, row = packed[expert], x[token][None]
            if mlp.args.weighs_inputs:
                row, weight = (weight * row.to(out.dtype)).to(x.dtype), 1.0
            out[token] += weight * linear(activate(linear(row, mlp.gate_up), mlp.args), mlp.down)[0]
    return out.to(x.dtype)


def filter_logits(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    rows = zip(logits, top_k.tolist(), top_p.tolist(), min_p.tolist(), strict=True)
    return torch.stack([_filtered(*row) for row in rows]) if len(logits) else logits


def _filtered(row: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    values = row.to(_compute_dtype(row)).sort(descending=True).values[: top_k or None]
    probabilities = values.softmax(dim=0)
    inside = probabilities.cumsum(0) - probabilities < top_p
    inside[0] = True  # top_p 0 keeps the best
    inside |= torch.tensor(top_p >= 1.0)  # rounding must not cut without a top_p
    threshold = values[inside][-1]
    if min_p > 0.0:
        threshold = torch.maximum(threshold, values[0] + math.log(min_p))
    return row.masked_fill(row < threshold, -math.inf)


def max_logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    largest, tokens = logits.max(dim=-1)
    return largest.float(), torch.where(torch.isfinite(largest), tokens, -1)


def gumbel_argmax(logits: Tensor, keys: Tensor) -> Tensor:
    ids = torch.arange(logits.shape[-1], device=logits.device)
    low, high = keys & _MASK32, (keys >> 32) & _MASK32
    # A row at a time: the whole [S, V] in 64-bit integers would not fit a cache.
    return torch.stack([_sample(row, ids, low[i], high[i]) for i, row in enumerate(logits)])


def _sample(logits: Tensor, ids: Tensor, low: Tensor, high: Tensor) -> Tensor:
    hashed = _scramble((_scramble(ids ^ low) + high) & _MASK32)
    v = (hashed.to(_compute_dtype(logits)) + 0.5) * 2.0**-32
    v = v.clamp(max=1 - 2.0**-24)  # float32 would round up to 1, and noise of -inf would hide the only token
    return (logits - torch.log(-torch.log1p(-v))).argmax()


_MASK32 = 2**32 - 1


def _scramble(h: Tensor) -> Tensor:
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK32
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK32
    return h ^ (h >> 16)


def add_adapters(out: Tensor, x: Tensor, tiles: Tensor, place: AdapterPlace) -> None:
    from .adapters import add_in_torch

    add_in_torch(out, x, tiles, place)


def packs_adapters(dtype: torch.dtype) -> bool:
    return False
