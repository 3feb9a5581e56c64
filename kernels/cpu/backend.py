"""The CPU backend: the native library's loops, torch's matrix products; torch ops where the library cannot be.

Shapes are in ops.py; the torch-op versions of what the library does are in torch_fallback.py.
"""

import ctypes
import sys
from collections.abc import Callable, Iterable
from ctypes import CDLL

import torch
from torch import Tensor

from ..ops import RaggedBatch
from ..quantize import can_quantize, quantize
from . import build, torch_fallback
from .filter_logits import filter_logits as filter_logits
from .linear import Linear, pack
from .quantized_linear import QuantizedLinear
from .torch_fallback import copy_blocks as copy_blocks
from .torch_fallback import gelu as gelu
from .torch_fallback import gelu_tanh as gelu_tanh
from .torch_fallback import relu as relu

Packed = Linear | QuantizedLinear

# Longer rows are attended to in tiles, which pay from here on.
_MAX_SHORT_QUERY_LEN = 4
_MAX_HEAD_DIM = 512  # as in elementwise.cpp
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc's


def prepare() -> None:
    build.library()


def pack_linear(weight: Tensor, bias: Tensor | None = None, *, bits: int = 16) -> Packed:
    if bits == 16 or not can_quantize(weight, bits):
        return pack(weight, bias)
    quantized = quantize(weight, bits)
    library = _library_for(weight)
    if library is None:
        return pack(quantized.dequantized().to(weight.dtype), bias)
    return QuantizedLinear(quantized, bias, library)


def linear(x: Tensor, packed: Packed) -> Tensor:
    return packed.multiply(x)


def route(router_logits: Tensor, *, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    weights, ids = router_logits.softmax(dim=-1, dtype=torch.float32).topk(top_k, dim=-1)
    if renormalize:
        weights /= weights.sum(dim=-1, keepdim=True)
    return weights, ids.to(torch.int32)


def pack_experts(experts: Iterable[tuple[Tensor, Tensor]], *, num_experts: int) -> list[tuple[Packed, Packed]]:
    packed: list[tuple[Packed, Packed]] = [(pack_linear(gate_up), pack_linear(down)) for gate_up, down in experts]
    assert len(packed) == num_experts
    # Between what was packed lie holes where the unpacked were: 0.3 GB beside 1.1 GB of experts if nobody does this.
    if _malloc_trim is not None:
        _malloc_trim(0)
    return packed


def experts(x: Tensor, weights: Tensor, expert_ids: Tensor, packed: list[tuple[Packed, Packed]]) -> Tensor:
    """An expert at a time, so that its matrices are read once, for all pairs (token, k) that are its own."""
    pairs = expert_ids.flatten()
    order = pairs.argsort(stable=True)
    counts = pairs.bincount(minlength=len(packed)).tolist()
    busy = [expert for expert, count in enumerate(counts) if count]
    # Not x[...]: indexing by a tensor took 36 us for 256 rows of 1024 in bfloat16 where index_select took 5.
    gathered = x.index_select(0, order // expert_ids.shape[1])
    done = []
    for expert, rows in zip(busy, torch.split(gathered, [counts[expert] for expert in busy]), strict=True):
        gate_up, down = packed[expert]
        done.append(linear(silu_mul(linear(rows, gate_up)), down))
    out = torch.cat(done).index_select(0, order.argsort())
    return _weigh(out.view(*expert_ids.shape, -1), weights)


def _weigh(out: Tensor, weights: Tensor) -> Tensor:
    """Σ_k weights[t, k] · out[t, k], one k after the other: a reduction by torch may go another way for another T."""
    total = out[:, 0].float() * weights[:, :1]
    for k in range(1, out.shape[1]):
        total.addcmul_(out[:, k].float(), weights[:, k : k + 1])
    return total.to(out.dtype)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    library, dtypes = build.library(), build.NORM_DTYPES.get((x.dtype, weight.dtype))
    if library is None or dtypes is None or not x.is_contiguous():
        return torch_fallback.rms_norm(x, weight, eps=eps)
    out = torch.empty_like(x)
    hidden = x.shape[-1]
    getattr(library, f"add_rms_norm_{dtypes}")(
        x.data_ptr(), None, weight.data_ptr(), out.data_ptr(), None, x.numel() // hidden, hidden, eps, _num_threads()
    )
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    library, dtypes = build.library(), build.NORM_DTYPES.get((x.dtype, weight.dtype))
    if library is None or dtypes is None or not (x.is_contiguous() and residual.is_contiguous()):
        return torch_fallback.add_rms_norm(x, residual, weight, eps=eps)
    out, new_residual = torch.empty_like(x), torch.empty_like(x)
    getattr(library, f"add_rms_norm_{dtypes}")(
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        new_residual.data_ptr(),
        len(x),
        x.shape[-1],
        eps,
        _num_threads(),
    )
    return out, new_residual


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float) -> Tensor:
    return _layer_norm(x, None, weight, bias, eps)[0]


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    return _layer_norm(x, residual, weight, bias, eps)


def _layer_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """(normed, x + residual, or x where there is no residual)."""
    library = _library_for(x)
    if library is None or not (x.is_contiguous() and (residual is None or residual.is_contiguous())):
        if residual is None:
            return torch_fallback.layer_norm(x, weight, bias, eps=eps), x
        return torch_fallback.add_layer_norm(x, residual, weight, bias, eps=eps)
    out, new_residual = torch.empty_like(x), x if residual is None else torch.empty_like(x)
    hidden = x.shape[-1]
    getattr(library, f"add_layer_norm_{build.DTYPES[x.dtype]}")(
        x.data_ptr(),
        None if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        new_residual.data_ptr(),
        x.numel() // hidden,
        hidden,
        eps,
        _num_threads(),
    )
    return out, new_residual


def silu_mul(gate_up: Tensor) -> Tensor:
    return _gated(gate_up, "silu_mul", torch_fallback.silu_mul)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    return _gated(gate_up, "gelu_tanh_mul", torch_fallback.gelu_tanh_mul)


def _gated(gate_up: Tensor, name: str, fallback: Callable[[Tensor], Tensor]) -> Tensor:
    library = _library_for(gate_up)
    if library is None or not gate_up.is_contiguous():
        return fallback(gate_up)
    inner = gate_up.shape[-1] // 2
    out = gate_up.new_empty(len(gate_up), inner)
    getattr(library, f"{name}_{build.DTYPES[gate_up.dtype]}")(
        gate_up.data_ptr(), out.data_ptr(), len(gate_up), inner, _num_threads()
    )
    return out


def softcap(x: Tensor, cap: float) -> Tensor:
    library = build.library()
    if library is None or x.dtype != torch.float32 or not x.is_contiguous():
        return torch_fallback.softcap(x, cap)
    out = torch.empty_like(x)
    library.softcap_float32(x.data_ptr(), out.data_ptr(), x.numel(), cap, _num_threads())
    return out


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
    library = build.library()
    norm = k_norm if q_norm is None else q_norm
    dtypes = build.NORM_DTYPES.get((q.dtype, q.dtype if norm is None else norm.dtype))
    head_dim = q.shape[-1]
    strided = all(x.stride(1) == head_dim and x.stride(2) == 1 for x in (q, k, v))
    if library is None or dtypes is None or not strided or head_dim > _MAX_HEAD_DIM:
        return torch_fallback.rope_and_cache(
            q, k, v, cos_sin, positions, slot_mapping, k_cache, v_cache, q_norm=q_norm, k_norm=k_norm, eps=eps
        )
    out = torch.empty(q.shape, dtype=q.dtype)
    getattr(library, f"rope_and_cache_{dtypes}")(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        None if q_norm is None else q_norm.data_ptr(),
        None if k_norm is None else k_norm.data_ptr(),
        out.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        cos_sin.data_ptr(),
        positions.data_ptr(),
        slot_mapping.data_ptr(),
        len(q),
        q.shape[1],
        k.shape[1],
        head_dim,
        cos_sin.shape[1],
        k_cache.shape[2],
        q.stride(0),
        k.stride(0),
        v.stride(0),
        eps,
        _num_threads(),
    )
    return out


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    ragged: RaggedBatch,
    *,
    scale: float,
    sliding_window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """Short rows one query at a time, chunks in tiles."""
    library = _library_for(q)
    if library is None or q.stride(2) != 1 or q.shape[2] > _MAX_HEAD_DIM:
        return torch_fallback.paged_attention(
            q, k_cache, v_cache, ragged, scale=scale, sliding_window=sliding_window, softcap=softcap
        )
    num_rows = len(ragged.seq_lens)
    num_short = num_rows if ragged.max_query_len <= _MAX_SHORT_QUERY_LEN else ragged.num_decodes
    out = torch.empty(q.shape, dtype=q.dtype)
    tensors = (q, k_cache, v_cache, out, ragged.query_start_loc, ragged.seq_lens, ragged.block_tables)
    pointers = [tensor.data_ptr() for tensor in tensors]
    sizes = (ragged.block_tables.stride(0), q.shape[1], k_cache.shape[1], q.shape[2], k_cache.shape[2])
    layout = (*sizes, q.stride(0), q.stride(1), out.stride(0), sliding_window, scale, softcap)
    suffix = build.DTYPES[q.dtype]
    if num_short:
        getattr(library, f"paged_attention_{suffix}")(*pointers, num_short, *layout, _num_threads())
    if num_short < num_rows:
        getattr(library, f"attend_chunks_{suffix}")(*pointers, num_short, num_rows, *layout, _num_threads())
    return out


def gumbel_argmax(logits: Tensor, keys: Tensor) -> Tensor:
    library = _library_for(logits)
    if library is None or logits.dtype != torch.float32:
        return torch_fallback.gumbel_argmax(logits, keys)
    logits = logits.contiguous()
    tokens = torch.empty(len(logits), dtype=torch.int64)
    library.gumbel_argmax_float32(
        logits.data_ptr(), keys.data_ptr(), tokens.data_ptr(), len(logits), logits.shape[1], _num_threads()
    )
    return tokens


def _library_for(x: Tensor) -> CDLL | None:
    return build.library() if x.dtype in build.DTYPES else None


def _num_threads() -> int:
    return torch.get_num_threads()
