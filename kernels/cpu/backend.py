"""CPU backend: the native library, or the reference's torch ops without it. Shapes are in ops.py."""

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..arguments import (
    SWIGLU_EXPERTS,
    AttentionArgs,
    CacheView,
    ExpertArgs,
    ExpertWeights,
    RaggedBatch,
    RopeArgs,
    RouteArgs,
)
from ..quantize import Plane, QuantizedWeight, can_quantize, dequantized, quantize, rounded_to_e4m3
from ..quantize import unpack_codes as unpack_in_torch
from . import build
from .build import op as _op
from .filter_logits import filter_logits as filter_logits
from .linear import add_adapters as add_adapters
from .linear import pack
from .linear import packs_adapters as packs_adapters
from .plan import num_short

if TYPE_CHECKING:
    from .. import reference
    from .experts import Experts
    from .quantized_linear import AnyLinear, QuantizedLinear, Table

else:

    class _Reference:
        """Reference, imported when the library first lacks an op."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("..reference", __package__), name)

    reference = _Reference()

# Ops of latents, recurrent layers or Gemma 3n, which few models have, by the module that has them.
_MODULES = {
    **dict.fromkeys(("pack_heads", "head_linear", "latent_and_cache"), "latent"),
    **dict.fromkeys(("short_conv", "gated_delta", "mamba2", "gated_rms_norm", "gate_mul"), "recurrence"),
    **dict.fromkeys(("sparse_gelu_mul", "match_rms"), "recurrence"),
    **dict.fromkeys(("altup_predict", "altup_correct"), "recurrence"),
}


def __getattr__(name: str) -> Any:
    """Import a rare op when it is first used."""
    if name not in _MODULES:
        raise AttributeError(name)
    op = globals()[name] = getattr(import_module(f".{_MODULES[name]}", __package__), name)
    return op


_MAX_HEAD_DIM, _MAX_LATENT_DIM = 512, 1024  # limits in elementwise.cpp
_ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "relu_squared", "tanh")  # by their numbers in elementwise.cpp
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc's


def prepare() -> None:
    build.library()


def inexact_reason(dtype: torch.dtype, *, head_dim: int) -> str | None:
    """Implement `ops.inexact_reason`: the library's ops keep one order of sums, torch's depend on the batch."""
    if build.library() is None:
        return "there is no native library"
    if dtype not in build.DTYPES:
        return f"there are no native ops for {str(dtype).removeprefix('torch.')}"
    return f"there is no native attention for heads of {head_dim}" if head_dim > _MAX_HEAD_DIM else None


def pack_linear(weight: Tensor, bias: Tensor | None = None, *, bits: int = 16, input_bits: int = 16) -> "AnyLinear":
    if bits == 16 or not can_quantize(weight, bits):
        return pack(weight, bias)
    return pack_quantized([quantize(weight, bits)], bias, dtype=weight.dtype, input_bits=input_bits)


def unpack_codes(blocks: Tensor, low: Plane, high: Plane | None = None, *, middle: int = 0) -> Tensor:
    # A server on a GPU reads files, too, and would wait for a library to be built that it does not need.
    if (library := build.loaded_library()) is None:
        return unpack_in_torch(blocks, low, high, middle=middle)
    num_values = low.num_bytes * 8 // low.width
    codes = torch.empty(len(blocks), num_values, dtype=torch.int8 if middle else torch.uint8)
    upper = high or Plane(0, 0, 1, 1)
    library["unpack_codes"](
        blocks=blocks.contiguous(), codes=codes, num_blocks=len(blocks), block_bytes=blocks.shape[1],
        num_values=num_values, begin=low.begin, num_bytes=low.num_bytes, width=low.width, run=low.run,
        upper_begin=upper.begin, upper_bytes=upper.num_bytes, upper_width=upper.width, upper_run=upper.run,
        middle=middle,
    )  # fmt: skip
    return codes


def pack_quantized(
    parts: Sequence[QuantizedWeight], bias: Tensor | None = None, *, dtype: torch.dtype, input_bits: int = 16
) -> "AnyLinear":
    from .quantized_linear import pack_parts

    return pack_parts(parts, bias, build.library(), dtype, input_bits=input_bits)


def pack_fp8(weight: Tensor, bias: Tensor | None = None) -> "AnyLinear":
    return pack(rounded_to_e4m3(weight), bias)


def pack_fp8_columns(weight: Tensor, places: Sequence[tuple[slice, Tensor | None]]) -> list["AnyLinear"]:
    """Round a weight to e4m3 and pack slices of its columns, each with a bias."""
    whole = rounded_to_e4m3(weight)
    return [pack(whole[:, columns].contiguous(), bias) for columns, bias in places]


def linear(x: Tensor, packed: "AnyLinear") -> Tensor:
    return packed.multiply(x)


def linear_silu_mul(x: Tensor, packed: "AnyLinear") -> Tensor:
    return silu_mul(linear(x, packed))


def pack_embedding(weight: QuantizedWeight, *, dtype: torch.dtype, input_bits: int = 16) -> "QuantizedLinear | Table":
    from .quantized_linear import pack_table

    return pack_table(weight, build.library(), dtype, input_bits=input_bits)


def embedding(token_ids: Tensor, packed: "QuantizedLinear | Table") -> Tensor:
    return packed.rows(token_ids)


def route(router_logits: Tensor, args: RouteArgs, slot_mapping: Tensor | None = None) -> tuple[Tensor, Tensor]:
    run = _op("route", build.DTYPES.get(router_logits.dtype))
    if run is None:
        return reference.route(router_logits, args)
    num_tokens, num_experts = router_logits.shape
    weights, ids = (router_logits.new_empty(num_tokens, args.top_k, dtype=d) for d in (torch.float32, torch.int32))
    run(
        logits=router_logits, bias=args.bias, weights=weights, ids=ids, num_tokens=num_tokens, num_experts=num_experts,
        top_k=args.top_k, is_sigmoid=args.is_sigmoid, is_renormalized=args.renormalize, num_groups=args.num_groups,
        num_kept_groups=args.num_kept_groups, num_group_scores=args.num_group_scores, scale=args.scale,
        jitter=args.jitter,
    )  # fmt: skip
    return weights, ids


def pack_experts(
    experts: Iterable[ExpertWeights], *, num_experts: int, dtype: torch.dtype, bits: int = 16, input_bits: int = 16,
    is_fp8: bool = False, args: ExpertArgs = SWIGLU_EXPERTS,
) -> "Experts":  # fmt: skip
    from .experts import pack_experts as packed

    def pack_matrix(parts: Sequence[Tensor | QuantizedWeight], bias: Tensor | None) -> "AnyLinear":
        quantized = [part for part in parts if isinstance(part, QuantizedWeight)]
        if len(quantized) == len(parts):
            return pack_quantized(quantized, bias, dtype=dtype, input_bits=input_bits)
        weight = torch.cat([part if isinstance(part, Tensor) else dequantized([part], dtype) for part in parts])
        return pack_fp8(weight, bias) if is_fp8 else pack_linear(weight, bias, bits=bits, input_bits=input_bits)

    pairs = (
        (pack_matrix(expert.gate_up, expert.gate_up_bias), pack_matrix([expert.down], expert.down_bias))
        for expert in experts
    )
    result = packed(pairs, num_experts, dtype, args)
    # Freed unpacked experts leave holes between the packed ones: without trimming 0.3 GB beside 1.1 GB of experts.
    if _malloc_trim is not None:
        _malloc_trim(0)
    return result


def experts(x: Tensor, weights: Tensor, expert_ids: Tensor, packed: "Experts") -> Tensor:
    return packed.multiply(x, weights, expert_ids)


def add_gated(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    run = _op("add_gated", build.DTYPES.get(x.dtype))
    if run is None:
        return reference.add_gated(x, gate, y)
    out = x.new_empty(*x.shape)
    run(x=x, gate=gate, y=y, out=out, num_rows=len(x), width=x.shape[1])
    return out


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    result = _norm("add_rms_norm", build.NORM_DTYPES.get((x.dtype, weight.dtype)), x, None, eps, weight=weight)
    return reference.rms_norm(x, weight, eps=eps) if result is None else result[0]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    result = _norm("add_rms_norm", build.NORM_DTYPES.get((x.dtype, weight.dtype)), x, residual, eps, weight=weight)
    return result or reference.add_rms_norm(x, residual, weight, eps=eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float) -> Tensor:
    result = _norm("add_layer_norm", build.DTYPES.get(x.dtype), x, None, eps, weight=weight, bias=bias)
    return reference.layer_norm(x, weight, bias, eps=eps) if result is None else result[0]


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    result = _norm("add_layer_norm", build.DTYPES.get(x.dtype), x, residual, eps, weight=weight, bias=bias)
    return result or reference.add_layer_norm(x, residual, weight, bias, eps=eps)


def _norm(
    name: str, dtype: str | None, x: Tensor, residual: Tensor | None, eps: float, **weights: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Return (normed, x + residual, or x without a residual); None if the library cannot compute them."""
    run = _op(name, dtype)
    if run is None or not (residual is None or residual.is_contiguous()):
        return None
    x = x.contiguous()  # q alone, for example, is a slice of the rows of q, k and v
    out, new_residual = x.new_empty(*x.shape), x if residual is None else x.new_empty(*x.shape)
    hidden = x.shape[-1]
    num_tokens = x.numel() // hidden
    run(
        x=x, residual=residual, out=out, new_residual=new_residual, num_tokens=num_tokens, hidden=hidden, eps=eps,
        **weights,
    )  # fmt: skip
    return out, new_residual


def activation(x: Tensor, kind: str) -> Tensor:
    run = _op("activation", build.DTYPES.get(x.dtype))
    if run is None or not x.is_contiguous():
        return reference.activation(x, kind)
    out = x.new_empty(*x.shape)
    run(x=x, out=out, num_rows=len(x), width=x.shape[1], kind=_ACTIVATIONS.index(kind))
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    return gated(gate_up, lambda x: reference.silu_mul(x), kind=0)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    return gated(gate_up, lambda x: reference.gelu_tanh_mul(x), kind=1)


def gated(gate_up: Tensor, fallback: Callable[[Tensor], Tensor], *, kind: int, limit: float = 0.0) -> Tensor:
    """Apply a gated activation; `kind` is its number in elementwise.cpp."""
    run = _op("gated", build.DTYPES.get(gate_up.dtype))
    if run is None or not gate_up.is_contiguous():
        return fallback(gate_up)
    num_tokens, inner = len(gate_up), gate_up.shape[-1] // 2
    out = gate_up.new_empty(num_tokens, inner)
    run(gate_up=gate_up, out=out, num_tokens=num_tokens, inner=inner, kind=kind, limit=limit)
    return out


def softcap(x: Tensor, cap: float) -> Tensor:
    library = build.library()
    if library is None or x.dtype != torch.float32 or not x.is_contiguous():
        return reference.softcap(x, cap)
    out = torch.empty_like(x)
    library["softcap"](x=x, out=out, count=x.numel(), cap=cap)
    return out


def rope_and_cache(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, slot_mapping: Tensor, rope: RopeArgs, cache: CacheView
) -> Tensor:
    norm = next((weight for weight in (rope.q_norm, rope.k_norm, rope.v_norm) if weight is not None), None)
    run = _op("rope_and_cache", build.NORM_DTYPES.get((q.dtype, q.dtype if norm is None else norm.dtype)))
    num_tokens, num_heads, head_dim = q.shape
    strided = all(x.stride(1) == head_dim and x.stride(2) == 1 for x in (q, k, v))
    if run is None or not strided or head_dim > _MAX_HEAD_DIM:
        return reference.rope_and_cache(q, k, v, positions, slot_mapping, rope, cache)
    out = q.new_empty(*q.shape)
    run(
        q=q, k=k, v=v, q_norm=rope.q_norm, k_norm=rope.k_norm, v_norm=rope.v_norm, out=out, k_cache=cache.keys,
        v_cache=cache.values, cos_sin=rope.cos_sin, positions=positions, slots=slot_mapping, num_tokens=num_tokens,
        num_heads=num_heads, num_kv_heads=k.shape[1], head_dim=head_dim, rotary=rope.cos_sin.shape[1],
        block_size=cache.keys.shape[2], q_token=q.stride(0), k_token=k.stride(0), v_token=v.stride(0),
        is_cache_int8=cache.keys.dtype == torch.int8, eps=rope.eps,
    )  # fmt: skip
    return out


def rotate(x: Tensor, positions: Tensor, rope: RopeArgs) -> Tensor:
    """Like ops.rotate: rope_and_cache without keys and values."""
    norm_dtype = x.dtype if rope.q_norm is None else rope.q_norm.dtype
    run = _op("rope_and_cache", build.NORM_DTYPES.get((x.dtype, norm_dtype)))
    num_tokens, num_heads, head_dim = x.shape
    if run is None or (x.stride(1), x.stride(2)) != (head_dim, 1) or head_dim > _MAX_HEAD_DIM:
        return reference.rotate(x, positions, rope)
    out = x.new_empty(*x.shape)
    run(
        q=x, k=None, v=None, q_norm=rope.q_norm, k_norm=None, v_norm=None, out=out, k_cache=None, v_cache=None,
        cos_sin=rope.cos_sin, positions=positions, slots=positions, num_tokens=num_tokens, num_heads=num_heads,
        num_kv_heads=0, head_dim=head_dim, rotary=rope.cos_sin.shape[1], block_size=1, q_token=x.stride(0), k_token=0,
        v_token=0, is_cache_int8=False, eps=rope.eps,
    )  # fmt: skip
    return out


def paged_attention(q: Tensor, cache: CacheView, ragged: RaggedBatch, args: AttentionArgs) -> Tensor:
    """Like ops.paged_attention: short rows run one query at a time, chunks in tiles."""
    run = _op("paged_attention", build.DTYPES.get(q.dtype))
    if run is None or q.stride(2) != 1 or q.shape[2] > (_MAX_LATENT_DIM if args.value_dim else _MAX_HEAD_DIM):
        return reference.paged_attention(q, cache, ragged, args)
    num_rows = len(ragged.seq_lens)
    out = q.new_empty(*q.shape[:2], args.value_dim or q.shape[2])
    run(
        q=q, k_cache=cache.keys, v_cache=cache.values, out=out, query_start_loc=ragged.query_start_loc,
        seq_lens=ragged.seq_lens, block_tables=ragged.block_tables,
        num_short=0 if args.lookahead or args.value_dim else num_short(ragged), num_rows=num_rows,
        max_blocks=ragged.block_tables.stride(0), num_heads=q.shape[1], num_kv_heads=cache.keys.shape[1],
        head_dim=q.shape[2], block_size=cache.keys.shape[2], q_token=q.stride(0), q_head=q.stride(1),
        window=args.sliding_window, lookahead=args.lookahead, is_cache_int8=cache.keys.dtype == torch.int8,
        scale=args.scale, softcap=args.softcap, sinks=args.sinks, value_dim=args.value_dim,
    )  # fmt: skip
    return out


def copy_blocks(caches: list[Tensor], source: Tensor, target: Tensor) -> None:
    for cache in caches:
        cache[target] = cache[source]


def max_logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    run = _op("max_logits", build.DTYPES.get(logits.dtype))
    if run is None:
        return reference.max_logits(logits)
    logits, num_rows = logits.contiguous(), len(logits)
    largest, tokens = torch.empty(num_rows), torch.empty(num_rows, dtype=torch.int64)
    run(logits=logits, largest=largest, tokens=tokens, num_rows=num_rows, vocab=logits.shape[1])
    return largest, tokens


def gumbel_argmax(logits: Tensor, keys: Tensor) -> Tensor:
    library = build.library()
    if library is None or logits.dtype != torch.float32:
        return reference.gumbel_argmax(logits, keys)
    logits = logits.contiguous()
    tokens = torch.empty(len(logits), dtype=torch.int64)
    library["gumbel_argmax"](logits=logits, keys=keys, tokens=tokens, num_rows=len(logits), vocab=logits.shape[1])
    return tokens
