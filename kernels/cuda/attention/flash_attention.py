"""Attention of long prompts by FlashAttention 3 (Shah et al. 2024, arXiv 2407.08608): `--attention-backend flash-attn`.

Compiled never, run never on a card: tests compare its arguments by a stand-in that computes. The package takes pages of
any size and any strides, so our cache [N, Hkv, S, D] is its [N, S, Hkv, D] without a copy. FlashAttention 2 takes only
pages of a multiple of 256 tokens. FlashInfer plans each step from lengths on the host, which the op does not have.
"""

import logging
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

from ...arguments import AttentionArgs, CacheView, RaggedBatch
from ..device_info import device_info

_log = logging.getLogger("splitfuse.kernels")
MIN_SEQ_LEN = 4096  # untuned: tests/gpu/bench_cases.py times both from here on
_SMALLEST_TILE = 64  # of keys; the package reads pages that hold whole tiles beyond a row's end
_attend: Callable[..., Tensor] | None = None
_obstacles: set[str] = set()  # obstacles that the log has named


def choose(device: torch.device, name: str | None) -> str | None:
    """Implement `ops.choose_attention`."""
    global _attend
    _attend = None
    if name is None:
        return None
    capability = device_info(device).capability
    if capability // 10 != 9:
        return f"FlashAttention 3 is for compute capability 9.x (Hopper), and this GPU has {capability / 10}"
    try:
        _attend = import_module("flash_attn_interface").flash_attn_with_kvcache
    except (ImportError, AttributeError, OSError) as exc:  # OSError: built for another torch
        return (
            f"FlashAttention 3 cannot be imported ({exc}); build flash_attn_3 from the folder hopper of its repository"
        )
    return None


def prefill_attention(q: Tensor, cache: CacheView, ragged: RaggedBatch, args: AttentionArgs, out: Tensor) -> bool:
    """Like attention_prefill.prefill_attention, and return True; or return False if our own kernel has to do it."""
    if _attend is None or ragged.num_decodes is None or ragged.max_seq_len < MIN_SEQ_LEN:
        return False
    if (obstacle := _obstacle(q, cache, args)) is not None:
        if obstacle not in _obstacles:
            _obstacles.add(obstacle)
            _log.warning("attention with %s is computed by our own kernel, not by FlashAttention 3", obstacle)
        return False
    first = ragged.num_decodes
    out[first:] = _attend(
        q[first:],
        cache.keys.transpose(1, 2),
        cache.values.transpose(1, 2),
        cache_seqlens=ragged.seq_lens[first:],
        page_table=ragged.block_tables[first:],
        cu_seqlens_q=ragged.query_start_loc[first:] - first,
        max_seqlen_q=ragged.max_query_len,
        softmax_scale=args.scale,
        causal=True,
        softcap=args.softcap,
    )
    return True


def _obstacle(q: Tensor, cache: CacheView, args: AttentionArgs) -> str | None:
    """Return what the package does not compute, or not safely, of a layer."""
    block_size, head_dim = cache.keys.shape[2:]
    obstacles = {
        f"heads of {head_dim}": head_dim > 256 or head_dim % 8,
        f"{q.dtype}": q.dtype not in (torch.float16, torch.bfloat16),
        f"a cache of {cache.keys.dtype}": cache.keys.dtype != q.dtype,
        f"blocks of {block_size} tokens": block_size >= _SMALLEST_TILE,
        "sinks": args.sinks is not None,
        "keys after the query": args.lookahead,
        # Its tiles begin left of the window, in blocks that may be another row's by now.
        "a sliding window": args.sliding_window,
    }
    return next((name for name, is_there in obstacles.items() if is_there), None)
