"""The one door to the kernels: tensors in, tensors out.

Every op is one function; its shapes stand in its docstring and are the same for every backend. A backend is a module
with functions of these names: `cuda` (Triton), `cpu` (torch ops and the native library), `reference` (plain torch, any
dtype, the oracle of the tests). Knows nothing of requests, models or schedules.

Letters: T tokens of the whole ragged batch, B rows (sequences), H hidden, Hq query heads, Hkv KV heads, D head size,
N blocks, S block size, I MLP size, E experts, K experts per token.
"""

import importlib
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

_BACKEND_OF_DEVICE = {"cuda": "cuda", "cpu": "cpu", "meta": "reference"}
_MODULES = {"cuda": ".cuda.backend", "cpu": ".cpu.backend", "reference": ".reference"}
_backends: dict[str, ModuleType] = {}
_forced: str | None = None


class RaggedBatch(NamedTuple):
    """Where each row's tokens and cached keys lie. Rows of one query token come first.

    The numbers on the host decide what is launched, the tensors what is done: a graph captured with bounds as
    `max_seq_len` and `max_query_len` serves every length below them.

    A row b owns query tokens [query_start_loc[b], query_start_loc[b + 1]); they are the last of its seq_lens[b] tokens,
    whose keys and values stand in the blocks block_tables[b, : ceil(seq_lens[b] / S)]. Further entries are padding.
    """

    query_start_loc: Tensor  # [B + 1] int32
    # [B] int32, tokens in the cache after this step's write, so at least the row's query length; 0: a row of one query
    # token that only fills a graph up
    seq_lens: Tensor
    block_tables: Tensor  # [B, max blocks] int32
    num_decodes: int  # rows [0, num_decodes) have exactly one query token; the others have two or more
    max_query_len: int  # no row has more
    max_seq_len: int  # no row has more


def use_backend(name: str | None) -> None:
    """Force one backend for every device ("cuda", "cpu", "reference"), or with None go by device again. For tests."""
    global _forced
    _forced = name


def _backend(tensor: Tensor) -> ModuleType:
    name = _forced or _BACKEND_OF_DEVICE[tensor.device.type]
    module = _backends.get(name)
    if module is None:
        # On first use, so that a CPU user never imports Triton.
        module = _backends[name] = importlib.import_module(_MODULES[name], __package__)
    return module


def prepare(device: torch.device) -> None:
    """Do what a backend does once per machine before its first op, such as building a library. May take seconds."""
    module = _backend(torch.empty(0, device=device))
    if hasattr(module, "prepare"):
        module.prepare()


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, computed in float32 (Zhang & Sennrich 2019).

    x [T, H], weight [H] → [T, H] in x's dtype. With a float32 weight nothing is rounded before it is applied.
    """
    return _backend(x).rms_norm(x, weight, eps=eps)  # type: ignore[no-any-return]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """residual' = x + residual (rounded to x's dtype), then rms_norm(residual').

    x, residual [T, H], weight [H] → (normed [T, H], residual' [T, H]). `residual` may be overwritten: use what returns.
    """
    return _backend(x).add_rms_norm(x, residual, weight, eps=eps)  # type: ignore[no-any-return]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) · weight + bias over the last dimension, in float32 (Ba et al. 2016).

    x [T, H], weight and bias [H] → [T, H] in x's dtype. The variance is the biased one.
    """
    return _backend(x).layer_norm(x, weight, bias, eps=eps)  # type: ignore[no-any-return]


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """residual' = x + residual (rounded to x's dtype), then layer_norm(residual'). Shapes as add_rms_norm."""
    return _backend(x).add_layer_norm(x, residual, weight, bias, eps=eps)  # type: ignore[no-any-return]


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, with gate_up = [gate | up] along the last dimension (Shazeer 2020, SwiGLU).

    gate_up [T, 2·I] → [T, I].
    """
    return _backend(gate_up).silu_mul(gate_up)  # type: ignore[no-any-return]


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """gelu_tanh(gate) · up, with gate_up = [gate | up] along the last dimension (Shazeer 2020, GEGLU).

    gate_up [T, 2·I] → [T, I].
    """
    return _backend(gate_up).gelu_tanh_mul(gate_up)  # type: ignore[no-any-return]


def gelu_tanh(x: Tensor) -> Tensor:
    """x · (1 + tanh(sqrt(2/π) · (x + 0.044715·x³))) / 2, GELU's approximation (Hendrycks & Gimpel 2016). x [T, I]."""
    return _backend(x).gelu_tanh(x)  # type: ignore[no-any-return]


def gelu(x: Tensor) -> Tensor:
    """x · (1 + erf(x / sqrt(2))) / 2 (Hendrycks & Gimpel 2016). x [T, I]."""
    return _backend(x).gelu(x)  # type: ignore[no-any-return]


def relu(x: Tensor) -> Tensor:
    """max(x, 0). x [T, I]."""
    return _backend(x).relu(x)  # type: ignore[no-any-return]


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap · tanh(x / cap): nearly x for small x, never beyond ±cap (Gemma Team 2024, Gemma 2). x [S, V]."""
    return _backend(x).softcap(x, cap)  # type: ignore[no-any-return]


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
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Optionally RMS-normalise each q and k head, rotate q and k (Su et al. 2021), write k and v into the cache.

    q [T, Hq, D], k and v [T, Hkv, D], each possibly a strided view of one qkv tensor (last dimension contiguous).
    cos_sin [max positions, R] float32, cosines in the first R/2 columns, sines in the rest; the first R ≤ D dimensions
    of a head turn, in halves: (x1, x2) → (x1·cos - x2·sin, x2·cos + x1·sin) with x1 = x[:R/2], x2 = x[R/2:R]. R may be
    0: nothing turns (learned positions).
    positions [T] int64. slot_mapping [T] int64: token t goes to block slot // S, offset slot % S; -1 writes nothing.
    k_cache, v_cache [N, Hkv, S, D], in the dtype of k or in e4m3 (Micikevicius et al. 2022), which takes k and v over
    kv_scales [2, Hkv] float32 (keys', values'; None: 1), cut off at ±448. q_norm, k_norm [D]: weights of the per-head
    norm, before the rotation (Qwen3), as rms_norm takes them.
    → rotated q [T, Hq, D], contiguous or not; q may be overwritten: use what returns.
    """
    return _backend(q).rope_and_cache(  # type: ignore[no-any-return]
        q, k, v, cos_sin, positions, slot_mapping, k_cache, v_cache, q_norm=q_norm, k_norm=k_norm, eps=eps,
        **_given(kv_scales),
    )  # fmt: skip


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    ragged: RaggedBatch,
    *,
    scale: float,
    sliding_window: int = 0,
    softcap: float = 0.0,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Causal attention of each row's query tokens over that row's cached tokens (Kwon et al. 2023, PagedAttention).

    q [T, Hq, D], k_cache and v_cache [N, Hkv, S, D] → [T, Hq, D]. Query head h reads KV head h // (Hq // Hkv).
    Query token i of row b stands at position p = seq_lens[b] - query_len + i and sees cached positions
    max(0, p - sliding_window + 1) .. p, or 0 .. p if sliding_window is 0. Slots beyond are never read, or masked
    so that whatever they hold (NaN too) does not matter. With a softcap c above 0 a score s becomes c · tanh(s / c).
    What lies in a cache of e4m3 counts times kv_scales, as `rope_and_cache` takes them.
    """
    return _backend(q).paged_attention(  # type: ignore[no-any-return]
        q, k_cache, v_cache, ragged, scale=scale, sliding_window=sliding_window, softcap=softcap,
        **_given(kv_scales),
    )  # fmt: skip


def _given(kv_scales: Tensor | None) -> dict[str, Tensor]:
    return {} if kv_scales is None else {"kv_scales": kv_scales}  # the CPU has no cache of e4m3


def copy_blocks(caches: list[Tensor], source: Tensor, target: Tensor) -> None:
    """cache[target[i]] = cache[source[i]] for every cache [N, Hkv, S, D]; source, target [n] int64, targets distinct.

    No block is both a source and a target.
    """
    if caches and len(source):
        _backend(caches[0]).copy_blocks(caches, source, target)


def filter_logits(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Set to -inf what top-k, then top-p of what that leaves, or min-p takes out of each row; equal ones stay together.

    logits [S, V] float32, overwritten; top_k [S] int32, at most so many stay (Fan et al. 2018), 0 or V and more: all;
    top_p [S] float32, the likeliest up to that mass (Holtzman et al. 2020), 0: the best, 1: all; min_p [S] float32,
    those with p >= min_p · the largest p (Nguyen et al. 2024). → [S, V], `logits` or not: use what returns.
    """
    return _backend(logits).filter_logits(logits, top_k, top_p, min_p)  # type: ignore[no-any-return]


def gumbel_argmax(logits: Tensor, keys: Tensor) -> Tensor:
    """argmax of logit + Gumbel noise, which draws from softmax(logits) (Gumbel 1954; Maddison et al. 2014).

    logits [S, V] float32, keys [S] int64 → tokens [S] int64. The noise of token id i is -log(-log(1 - v)) with
    v = (hash(key, i) + 1/2) / 2^32, hash = scramble(scramble(i ^ low key) + high key) on 32 bits, scramble being
    MurmurHash3's finaliser (Appleby 2011). So a draw depends on its key and logits only, and rounding errors in the
    logits change it no more often than they change the distribution (an inverse CDF: up to V times as often).
    """
    return _backend(logits).gumbel_argmax(logits, keys)  # type: ignore[no-any-return]


def pack_linear(weight: Tensor, bias: Tensor | None = None, *, bits: int = 16) -> Any:
    """Lay a weight [out, in] (and bias [out]) out as this device multiplies fastest; give the result to `linear`.

    `bits` 8 or 4: quantized first (quantize.py); a shape that has no quantized layout stays as it is.
    """
    return _backend(weight).pack_linear(weight, bias, bits=bits)


def linear(x: Tensor, packed: Any) -> Tensor:
    """x [T, in] times a weight from `pack_linear` → [T, out]."""
    return _backend(x).linear(x, packed)  # type: ignore[no-any-return]


def route(router_logits: Tensor, *, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """The K likeliest experts of each token: softmax in float32 over all E, the `top_k` largest, the largest first.

    router_logits [T, E], K = top_k <= E → (weights [T, K] float32, expert_ids [T, K] int32). With `renormalize` the
    weights of a token are divided by their sum (Jiang et al. 2024, Mixtral), else they stay its probabilities.
    """
    return _backend(router_logits).route(  # type: ignore[no-any-return]
        router_logits, top_k=top_k, renormalize=renormalize
    )


def pack_experts(experts: Iterable[tuple[Tensor, Tensor]], *, num_experts: int, device: torch.device) -> Any:
    """Lay the MLPs of `num_experts` experts out as this device multiplies them fastest; give the result to `experts`.

    Each is (gate_up [2·I, H], down [H, I]) on the device, gate_up as `silu_mul` wants its result. They are taken from
    the iterable one at a time, so that no more than one of them need be in memory twice.
    """
    return _backend(torch.empty(0, device=device)).pack_experts(experts, num_experts=num_experts)


def experts(x: Tensor, weights: Tensor, expert_ids: Tensor, packed: Any) -> Tensor:
    """Σ_k weights[t, k] · MLP of expert expert_ids[t, k] (x[t]), MLP being down · silu_mul(gate_up · x).

    x [T, H], weights [T, K] float32 and expert_ids [T, K] int32 as from `route`, packed from `pack_experts` → [T, H].
    A token's sum is taken in float32 and in the order of its k, whoever else is in the batch (Shazeer et al. 2017).
    """
    return _backend(x).experts(x, weights, expert_ids, packed)  # type: ignore[no-any-return]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all work given to it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
