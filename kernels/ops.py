# mypy: disable-error-code="empty-body"
"""Ops: the only entry point to the kernels, tensors in, tensors out.

An op is declared here alone: its signature, and a docstring with the shapes. Every backend has a function of that name
and signature: `cuda` (Triton), `cpu` (torch ops and the native library), `reference` (plain torch, any dtype, the
oracle of the tests).
Knows nothing of requests, models or schedules.

Letters: T tokens of the whole ragged batch, B rows (sequences), H hidden, Hq query heads, Hkv KV heads, D head size,
N blocks, S block size, I MLP size, E experts, K experts per token.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from .arguments import FAST_INPUTS as FAST_INPUTS
from .arguments import HEAD_INPUTS as HEAD_INPUTS
from .arguments import SWIGLU_EXPERTS as SWIGLU_EXPERTS
from .arguments import AdapterPart as AdapterPart
from .arguments import AdapterPlace as AdapterPlace
from .arguments import AttentionArgs as AttentionArgs
from .arguments import CacheView as CacheView
from .arguments import ExpertArgs as ExpertArgs
from .arguments import ExpertWeights as ExpertWeights
from .arguments import RaggedBatch as RaggedBatch
from .arguments import RopeArgs as RopeArgs
from .arguments import RouteArgs as RouteArgs
from .arguments import StateBatch as StateBatch
from .arguments import StateView as StateView
from .arguments import StepArrays as StepArrays
from .int8_cache import token_width as token_width
from .quantize import E2M1 as E2M1
from .quantize import Plane as Plane
from .quantize import QuantizedWeight as QuantizedWeight
from .quantize import can_quantize as can_quantize
from .quantize import powers_of_two as powers_of_two
from .quantize import quantize as quantize
from .quantize import rounded as rounded

if TYPE_CHECKING:
    from .adapters import AdapterTable as AdapterTable

P = ParamSpec("P")
R = TypeVar("R")
_BACKEND_OF_DEVICE = {"cuda": "cuda", "cpu": "cpu", "meta": "reference"}


@cache
def _load(name: str) -> Any:
    """Import a backend on first use, so that a CPU user never imports Triton. Packed weights have its own layouts."""
    return import_module(f".{name}" if name == "reference" else f".{name}.backend", __package__)


def _backend(tensor: Tensor) -> Any:
    return _load(_BACKEND_OF_DEVICE[tensor.device.type])


def _backend_op(declaration: Callable[P, R]) -> Callable[P, R]:
    """Return the op of this declaration: the backend's, by the device of the first argument."""
    name = declaration.__name__

    @wraps(declaration)
    def op(*args: Any, **options: Any) -> Any:  # 0.1 us more than a function with the declared parameters
        return getattr(_load(_BACKEND_OF_DEVICE[args[0].device.type]), name)(*args, **options)

    return cast(Callable[P, R], op)


def prepare(device: torch.device) -> None:
    """Do the work that a backend needs once per machine before its first op, such as building a library.

    May take seconds.
    """
    _backend(torch.empty(0, device=device)).prepare()


def be_exact(device: torch.device, is_exact: bool) -> None:
    """Let a GPU's kernels keep one order of a row's sums in this thread from now on, or not; a CPU's always do."""
    if device.type == "cuda":
        from .cuda import device_info

        device_info.EXACT.is_on = is_exact


def inexact_reason(device: torch.device, dtype: torch.dtype, *, head_dim: int) -> str | None:
    """Return the reason why a row's bits may depend on the rows beside it; None if they depend on the row alone."""
    if device.type == "cuda":
        from .cuda import device_info

        return device_info.inexact_reason(device)
    from .cpu.backend import inexact_reason as of_cpu

    return of_cpu(dtype, head_dim=head_dim)


def decode_planner(device: torch.device, layers: Iterable[tuple[int, int, int]], **dtypes: torch.dtype) -> Any:
    """Return the maker of a GPU's work lists for layers (window, KV heads, head size); None for other devices.

    `dtypes`: dtype and cache_dtype. (query_start_loc, seq_lens) → the arrays of RaggedBatch.plans by name.
    """
    if device.type != "cuda":
        return None
    from .cuda import attention_decode

    return attention_decode.decode_planner(device, layers, **dtypes)


def compile_ahead(device: torch.device) -> AbstractContextManager[object]:
    """Compile a GPU's kernels concurrently within the block, without running them: outputs stay as allocated."""
    if device.type != "cuda":
        return nullcontext()
    from .cuda.compile_ahead import compile_ahead as compiling

    return compiling()


def when_compiled(device: torch.device, call: Callable[[], object]) -> None:
    """Register a function to be called whenever a kernel has been compiled for a GPU, in any thread."""
    if device.type == "cuda":
        from .cuda.compile_ahead import when_compiled as calling

        calling(call)


def record(forward: Callable[[Any, StepArrays], Any], *, width: int, dtype: torch.dtype, device: torch.device) -> Any:
    """Record `forward` as a plan, an object whose run(x, arrays) equals forward(x, arrays) to the bit, in one call.

    x [T, width] of `dtype` → [L, …], for any numbers T of tokens and L of logits_indices. `forward` is called once,
    with stand-ins for its tensors, and must consist of this module's ops and of views. Otherwise, and on a device
    without plans, returns a string with the reason.
    """
    if _BACKEND_OF_DEVICE[device.type] != "cpu":
        return f"no plans are made for {device.type}"
    from .cpu.plan import record as recorded

    return recorded(forward, width=width, dtype=dtype)


@_backend_op
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, computed in float32 (Zhang & Sennrich 2019).

    x [T, H], weight [H] → [T, H] in x's dtype. A float32 weight is applied before any rounding.
    """


@_backend_op
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """residual' = x + residual (rounded to x's dtype), then rms_norm(residual').

    x, residual [T, H], weight [H] → (normed [T, H], residual' [T, H]). `residual` may be overwritten: use the result.
    """


@_backend_op
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) · weight + bias over the last dimension, in float32 (Ba et al. 2016).

    x [T, H], weight and bias [H] → [T, H] in x's dtype. The variance is the biased one.
    """


@_backend_op
def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """residual' = x + residual (rounded to x's dtype), then layer_norm(residual'). Shapes are add_rms_norm's."""


@_backend_op
def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, with gate_up = [gate | up] along the last dimension (Shazeer 2020, SwiGLU).

    gate_up [T, 2·I] → [T, I].
    """


@_backend_op
def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """gelu_tanh(gate) · up, with gate_up = [gate | up] along the last dimension (Shazeer 2020, GEGLU).

    gate_up [T, 2·I] → [T, I].
    """


@_backend_op
def activation(x: Tensor, kind: str) -> Tensor:
    """Apply gelu, gelu_tanh, relu, relu_squared or tanh to x [T, I].

    gelu: x · (1 + erf(x / sqrt(2))) / 2; gelu_tanh: x · (1 + tanh(sqrt(2/π) · (x + 0.044715·x³))) / 2, its
    approximation (Hendrycks & Gimpel 2016); relu_squared: max(x, 0)² (So et al. 2021, Primer).
    """


@_backend_op
def softcap(x: Tensor, cap: float) -> Tensor:
    """cap · tanh(x / cap): nearly x for small x, never beyond ±cap (Gemma Team 2024, Gemma 2). x [S, V]."""


@_backend_op
def rope_and_cache(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, slot_mapping: Tensor, rope: RopeArgs, cache: CacheView
) -> Tensor:
    """Optionally RMS-normalise each head, rotate q and k (Su et al. 2021), write k and v into the cache.

    q [T, Hq, D], k and v [T, Hkv, D], possibly strided views of one qkv tensor (last dimension contiguous).
    The first R ≤ D dimensions of a head are rotated, in halves: (x1, x2) → (x1·cos - x2·sin, x2·cos + x1·sin) with
    x1 = x[:R/2], x2 = x[R/2:R]. R = 0 rotates none (learned positions).
    positions [T] int64. slot_mapping [T] int64: token t goes to block slot // S, offset slot % S; -1 writes nothing.
    An int8 cache gets keys rotated in float32 and rounded once, to nearest even: the error is at most max|x| / 254. A
    head that is not finite is NaN for every token that reads it.
    → rotated q [T, Hq, D], contiguous or not; q may be overwritten: use the result.
    """


@_backend_op
def rotate(x: Tensor, positions: Tensor, rope: RopeArgs) -> Tensor:
    """RMS-normalise each head by `rope.q_norm` and rotate it, like the queries of `rope_and_cache`.

    x [T, heads, D], rows any stride apart; positions [T] int64 → [T, heads, D], contiguous.
    """


@_backend_op
def paged_attention(q: Tensor, cache: CacheView, ragged: RaggedBatch, args: AttentionArgs) -> Tensor:
    """Attention of each row's query tokens over that row's cached tokens (Kwon et al. 2023, PagedAttention).

    q [T, Hq, D] → [T, Hq, D]. Query head h reads KV head h // (Hq // Hkv).
    Query token i of row b is at position p = seq_lens[b] - query_len + i and sees cached positions
    max(0, p - sliding_window + 1) .. p, or 0 .. p if sliding_window is 0; with `lookahead` also the next positions up
    to min(p + lookahead, seq_lens[b] - 1). Other slots are never read, or are masked so that their content (NaN too)
    does not matter. With an int8 cache, scores are multiplied by the scales of keys and weights by the scales of
    values, so there is no more rounding than with a cache in q's dtype. A head's sink joins the sum that divides its
    weights. With `args.value_dim`, R, the cache holds latents, a key's first R numbers are its value → [T, Hq, R].
    """


@_backend_op
def pack_heads(weight: Tensor) -> Any:
    """Pack a matrix for each head, [Hq, out, in], for `head_linear` and `latent_and_cache`."""


@_backend_op
def head_linear(x: Tensor, packed: Any) -> Tensor:
    """Multiply each head by its own matrix: x [T, Hq, in] → [T, Hq, out]."""


@_backend_op
def latent_and_cache(
    q: Tensor, latent: Tensor, k: Tensor, positions: Tensor, slots: Tensor, cos_sin: Tensor, up: Any, cache: CacheView
) -> Tensor:
    """Absorb the expansion of keys into q, rotate q and k, write [latent | k] into the cache (DeepSeek-AI 2024, V2).

    q [T, Hq, P + r]: P numbers for `up` [Hq, R, P], r that rotate as in `rope_and_cache`; latent [T, R], k [T, r];
    cos_sin [positions, r]; the cache's head has R + r numbers → [T, Hq, R + r]. An int8 token has one scale.
    """


@_backend_op
def short_conv(
    bcx: Tensor, weight: Tensor, bias: Tensor | None, view: StateView, ragged: RaggedBatch, states: StateBatch
) -> Tensor:
    """C · conv(B · x), with bcx = [B | C | x] and a causal convolution of each channel (Liquid AI 2025, LFM2).

    bcx [T, 3·H], rows any stride apart; weight [K, H] float32, oldest tap first; bias [H] float32 → [T, H]. A raw input
    is B · x [H], rounded to bcx's dtype. Like the other recurrent ops, a row's result and state have the same bits for
    any cut of its tokens into steps and any rows beside it, because every token is a step of its own.
    """


@_backend_op
def gated_delta(
    qkv: Tensor, gates: Tensor, weight: Tensor, a_log: Tensor, dt_bias: Tensor, view: StateView, ragged: RaggedBatch,
    states: StateBatch, *, num_k_heads: int, head_k_dim: int, num_v_heads: int, head_v_dim: int,
    tiles_heads: bool = False,
) -> Tensor:  # fmt: skip
    """silu(conv(qkv)), then the gated delta rule in float32, token by token (Yang et al. 2024, Gated Delta Networks).

    A value head's state S [dk, dv] becomes S' = g·S + k ⊗ (beta · (v - kᵀ(g·S))), its output is qᵀS'; k and q are
    divided by their norms (eps 1e-6), q also by sqrt(dk); g = exp(-exp(a_log) · softplus(a + dt_bias)), beta =
    sigmoid(b). Value head h uses key head h // (Hv // Hk), with `tiles_heads` key head h % Hk (llama.cpp's order).
    qkv [T, C = 2·Hk·dk + Hv·dv] = [q | k | v] and gates [T, 2·Hv] = [b | a] are the raw inputs, rows any stride apart;
    weight [K, C], a_log and dt_bias [Hv] float32; view.state [slots, Hv, dk, dv] → [T, Hv, dv] in qkv's dtype.

    If Hk = Hv, g may differ by key channel (Kimi Delta Attention, arXiv 2510.26692): with gates [T, Hv + Hv·dk] and
    dt_bias [Hv·dk], g [dk] scales the state's rows.
    """


@_backend_op
def mamba2(
    xbc: Tensor, dt: Tensor, weight: Tensor, bias: Tensor | None, a_log: Tensor, d: Tensor, dt_bias: Tensor,
    view: StateView, ragged: RaggedBatch, states: StateBatch, *, head_dim: int, num_groups: int, state_size: int,
    dt_limits: tuple[float, float] = (0.0, float("inf")),
) -> Tensor:  # fmt: skip
    """silu(conv(xbc)), then the state-space recurrence in float32, token by token (Dao & Gu 2024, Mamba-2).

    A head's state S [N, P] becomes S' = exp(-exp(a_log)·dt)·S + B ⊗ (dt·x), its output is CᵀS' + d·x, with
    dt = clamp(softplus(dt + dt_bias), *dt_limits). Head h uses B and C of group h // (heads // G).
    xbc [T, heads·P + 2·G·N] = [x | B | C] and dt [T, heads] are the raw inputs, rows any stride apart; weight [K, C],
    bias [C], a_log, d and dt_bias [heads] float32; view.state [slots, heads, N, P] → [T, heads, P] in xbc's dtype.
    """


@_backend_op
def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, group_size: int, norm_before_gate: bool,
    is_sigmoid: bool = False,
) -> Tensor:  # fmt: skip
    """rms_norm(x) · silu(gate), or rms_norm(x · silu(gate)), in groups of columns; rounded once (Dao & Gu 2024).

    With `is_sigmoid` sigmoid(gate) instead (Kimi Team 2025).
    x [T, W]; gate [T, W], rows any stride apart; weight [W], or [group_size] for all groups → [T, W] in x's dtype.
    """


@_backend_op
def gate_mul(x: Tensor, gate: Tensor, kind: str) -> Tensor:
    """x · f(gate), rounded once: f is sigmoid (Qiu et al. 2025, Gated Attention), silu or gelu_tanh.

    x, gate [T, …], gate's rows any stride apart → like x, contiguous.
    """


@_backend_op
def sparse_gelu_mul(gate_up: Tensor, *, num_deviations: float) -> Tensor:
    """gelu_tanh(max(gate - cutoff, 0)) · up, cutoff = mean(gate) + deviation(gate) · num_deviations (Gemma 3n).

    gate_up = [gate | up] along the last dimension, [T, 2·I] → [T, I].
    """


@_backend_op
def match_rms(x: Tensor, like: Tensor) -> Tensor:
    """x · rms(like) / max(rms(x), 1e-5^½) over the last dimension. x, like [T, H], contiguous → [T, H]."""


def altup_predict(streams: Sequence[Tensor], added: Tensor | None, coefs: Tensor) -> list[Tensor]:
    """stream b + Σ_i coefs[t, b, i] · stream i of N streams [T, H] (Baykal et al. 2023, AltUp), coefs [T, N·N].

    `added` [T, H] is added to all streams but the first before.
    """
    predictions: list[Tensor] = _backend(coefs).altup_predict(streams, added, coefs)
    return predictions


def altup_correct(predictions: Sequence[Tensor], activated: Tensor, coefs: Tensor) -> list[Tensor]:
    """prediction b + (activated - prediction 0) · (coefs[t, b] + 1) of N streams [T, H], coefs [T, N]."""
    streams: list[Tensor] = _backend(coefs).altup_correct(predictions, activated, coefs)
    return streams


def copy_blocks(caches: list[Tensor], source: Tensor, target: Tensor) -> None:
    """cache[target[i]] = cache[source[i]] for every cache [N, …]; source, target [n] int64, targets distinct.

    No block is both a source and a target.
    """
    if caches and len(source):
        _backend(caches[0]).copy_blocks(caches, source, target)


@_backend_op
def filter_logits(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Set the logits that a filter removes to -inf: top-k, then top-p of the rest, or min-p; ties are kept together.

    logits [S, V] float32, overwritten; top_k [S] int32, number of kept logits (Fan et al. 2018), 0 or at least V: all;
    top_p [S] float32, keeps the likeliest up to that mass (Holtzman et al. 2020), 0: the best, 1: all; min_p [S]
    float32, keeps p >= min_p · the largest p (Nguyen et al. 2024). → [S, V], perhaps `logits`: use the result.
    """


@_backend_op
def max_logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's largest logit and its index: logits [S, V] → ([S] float32, [S] int64).

    NaN counts as the largest. Among equal logits a device always chooses the same one. The index is -1 if the largest
    logit is not finite.
    """


@_backend_op
def gumbel_argmax(logits: Tensor, keys: Tensor) -> Tensor:
    """argmax of logit + Gumbel noise, which samples from softmax(logits) (Gumbel 1954; Maddison et al. 2014).

    logits [S, V] float32, keys [S] int64 → tokens [S] int64. The noise of token id i is -log(-log(1 - v)) with
    v = (hash(key, i) + 1/2) / 2^32, hash = scramble(scramble(i ^ low key) + high key) on 32 bits; scramble is
    MurmurHash3's finaliser (Appleby 2011). So a sample depends on its key and logits only, and rounding errors in the
    logits change a sample no more often than the distribution (with an inverse CDF: up to V times as often).
    """


@_backend_op
def pack_linear(weight: Tensor, bias: Tensor | None = None, *, bits: int = 16, input_bits: int = 16) -> Any:
    """Pack a weight [out, in] (and bias [out]) in this device's fastest layout, for `linear`.

    `bits` 8 or 4: quantize first (quantize.py); a shape without a quantized layout stays unquantized. `input_bits` 8:
    the inputs of a quantized weight may be rounded to int8, token by token and group by group, where that is faster.
    16: to 15 bits, from bfloat16 on a CPU with byte products but no tiles. HEAD_INPUTS: the same with tiles too.
    FAST_INPUTS: as with 8, from bfloat16 on a CPU with byte products.
    """


@_backend_op
def unpack_codes(blocks: Tensor, low: Plane, high: Plane | None = None, *, middle: int = 0) -> Tensor:
    """Return the values of quantized blocks [n, bytes] uint8: low + (high << low's width) - middle.

    [n, values] uint8, or int8 with a middle.
    """


def pack_quantized(
    parts: Sequence[QuantizedWeight], bias: Tensor | None = None, *, dtype: torch.dtype, input_bits: int = 16
) -> Any:
    """Stack and pack quantized weights [out, in] of one input, for `linear` on inputs of `dtype`.

    The weights may differ in bits and groups, because files give more bits to weights that need them.
    """
    return _backend(parts[0].values).pack_quantized(parts, bias, dtype=dtype, input_bits=input_bits)


@_backend_op
def pack_fp8(weight: Tensor, bias: Tensor | None = None) -> Any:
    """Round a weight [out, in] to e4m3, with a scale for each output, and lay it out for `linear`.

    On a GPU `linear` then rounds x, too, with a scale for each token. On other devices only the weight is rounded.
    A shape without a layout in e4m3 stays unrounded.
    """


def rank_group(
    memory: int, *, rank: int, num_ranks: int, limit_s: float, backend: str = "memory", in_order: bool = True
) -> Any:
    """Return this rank's group for the sums of a tensor-parallel model. `memory`: descriptor of the ranks' empty file.

    `backend`: memory, a RankGroup (kernels/cpu/rank_group.py), None without a native library; nccl or gloo, a
    ProcessGroup (kernels/process_group.py).
    """
    if backend != "memory":
        from .process_group import ProcessGroup

        return ProcessGroup(memory, backend=backend, rank=rank, num_ranks=num_ranks, in_order=in_order)
    from .cpu import build
    from .cpu.rank_group import RankGroup

    if build.library() is None:
        return None
    return RankGroup(memory, rank=rank, num_ranks=num_ranks, limit_s=limit_s)


def pack_row_parallel(
    weight: Tensor | QuantizedWeight, bias: Tensor | None, *, columns: Sequence[slice], group: Any, dtype: torch.dtype,
    bits: int = 16, input_bits: int = 16, is_fp8: bool = False,
) -> Any:  # fmt: skip
    """Pack these columns of a weight [out, in] for this rank of a `rank_group`; a slice is a term of the sum.

    `linear` takes this rank's inputs [T, …] and returns the sum over all ranks. The weight is quantized like by
    `pack_linear` and `pack_fp8` before it is cut. Only one rank passes `bias`.
    """
    from .row_parallel import pack_row_parallel as packed  # here: few models are spread over ranks

    options: dict[str, Any] = {"dtype": dtype, "bits": bits, "input_bits": input_bits, "is_fp8": is_fp8}
    backend = _backend(weight if isinstance(weight, Tensor) else weight.values)
    return packed(weight, bias, columns, group, backend, **options)


@_backend_op
def linear(x: Tensor, packed: Any) -> Tensor:
    """Multiply x [T, in] by a weight of `pack_linear`, `pack_quantized`, `pack_fp8` or `pack_embedding` → [T, out]."""


def adapter_table(parts: Mapping[int, AdapterPart], *, num_parts: int, device: torch.device) -> "AdapterTable":
    """Lay out an adapter's matrices for `add_adapters`; its parts are numbered below `num_parts`."""
    from .adapters import AdapterTable  # here: few servers have adapters

    dtype = next((part.a.dtype for part in parts.values()), torch.float32)
    packs = _load(_BACKEND_OF_DEVICE[device.type]).packs_adapters(dtype)
    return AdapterTable(parts, num_parts=num_parts, device=device, packs=packs)


@_backend_op
def add_adapters(out: Tensor, x: Tensor, tiles: Tensor, place: AdapterPlace) -> None:
    """out[t] += scale · B (A x[t]) for every row t of the tiles, by its adapter's parts of this linear, in float32.

    x [T, in], out [T, N], both contiguous. tiles [n, 18] int64, as AdapterTable.tiles makes them: the address of an
    AdapterTable, a number of rows up to 16, and these rows; a row is in one tile at most. A row's bits do not depend on
    the other rows where `inexact_reason` is None.
    """


def pack_embedding(weight: QuantizedWeight, *, dtype: torch.dtype, input_bits: int = 16) -> Any:
    """Pack a quantized table [V, H] once for both `embedding` and `linear`, for a head that is tied to it."""
    return _backend(weight.values).pack_embedding(weight, dtype=dtype, input_bits=input_bits)


@_backend_op
def embedding(token_ids: Tensor, packed: Any) -> Tensor:
    """Look up rows token_ids [T] int64, all below V, of a table from `pack_embedding` → [T, H] in its dtype."""


@_backend_op
def linear_silu_mul(x: Tensor, packed: Any) -> Tensor:
    """silu_mul(linear(x, packed)), perhaps with less rounding in between: x [T, in], a weight [2·I, in] → [T, I]."""


@_backend_op
def route(router_logits: Tensor, args: RouteArgs, slot_mapping: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Choose each token's K = `args.top_k` best experts by scores in float32, the best first.

    router_logits [T, E], K <= E → (weights [T, K] float32, expert_ids [T, K] int32). A weight is the expert's score
    (Shazeer et al. 2017), divided by the token's sum of chosen ones if `args.renormalize` (Jiang et al. 2024, Mixtral),
    times `args.scale`.
    slot_mapping [T] int64: tokens of slot -1 only pad a CUDA graph, and a GPU routes them to no expert, which is -1.
    """


def pack_experts(
    experts: Iterable[ExpertWeights], *, num_experts: int, dtype: torch.dtype, device: torch.device, bits: int = 16,
    input_bits: int = 16, is_fp8: bool = False, args: ExpertArgs = SWIGLU_EXPERTS,
) -> Any:  # fmt: skip
    """Pack the MLPs of `num_experts` experts in this device's fastest layout, for `experts` on inputs of `dtype`.

    Matrices are packed like by `pack_linear` (`pack_fp8` if `is_fp8`) and `pack_quantized`. Experts
    are taken from the iterable one at a time, so at most one expert is in memory twice.
    """
    return _backend(torch.empty(0, device=device)).pack_experts(
        experts, num_experts=num_experts, dtype=dtype, bits=bits, input_bits=input_bits, is_fp8=is_fp8, args=args
    )


@_backend_op
def experts(x: Tensor, weights: Tensor, expert_ids: Tensor, packed: Any) -> Tensor:
    """Σ_k weights[t, k] · MLP of expert expert_ids[t, k] (x[t]), where MLP is down · activation(gate_up · x).

    If the experts weigh inputs: Σ_k MLP(weights[t, k] · x[t]), with the product rounded to x's dtype.
    x [T, H], weights [T, K] float32 and expert_ids [T, K] int32 from `route`, packed from `pack_experts` → [T, H].
    On a GPU pairs of expert -1 count as 0.
    A token's sum is taken in float32 and in the order of k, whatever else is in the batch (Shazeer et al. 2017).
    """


@_backend_op
def add_gated(x: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """x + sigmoid(gate) · y, with the sigmoid rounded to x's dtype: x and y [T, H], gate [T, 1] → [T, H]."""


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all submitted work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
