# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Mixture of experts: y[t] = Σ_k weight[t, k] · down_e(silu(gate_e x[t]) · up_e x[t]) with e = expert_ids[t, k].

Three launches after `group_by_expert`: gate_up with the activation in its epilogue (a program's two accumulators share
its tile of x; separate kernels would move 8·I more bytes per pair, with one more launch), down, and the weighted sum,
a kernel of its own because the order of atomic additions would vary.
A pair takes 6·H·I operations; an expert with at least one token has 6·H·I bytes of weights in 16 bits, read once per
tile. So n tokens per expert give n operations per byte, and up to some 300 the memory is the bound: at 2 of 8 experts
(Mixtral 8x7B) below 1,200 tokens, at 8 of 128 (Qwen3-30B-A3B) below 4,800. The activations are
6·H + 4·I bytes per pair, little in comparison.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..arguments import SWIGLU_EXPERTS, ExpertArgs
from . import device_info as settings
from .dependent import wait_for_previous
from .device_info import DeviceInfo, dependent_launch, device_info
from .linear import quantized_experts
from .linear.byte_linear import Config as Config
from .linear.quantized_experts import QuantizedExperts
from .moe_route import ExpertTiles, group_by_expert, load_tile


class PackedExperts(NamedTuple):
    gate_up: Tensor  # [E, 2·I, H]
    down: Tensor  # [E, H, I]
    gate_up_bias: Tensor | None = None  # [E, 2·I]
    down_bias: Tensor | None = None  # [E, H]
    args: ExpertArgs = SWIGLU_EXPERTS


def choose_config(num_pairs: int, num_experts: int, element_size: int, gpu: DeviceInfo) -> Config:
    """Choose tiles for twice an expert's average number of pairs, so that few experts need two tiles and two reads.

    Untuned on a GPU. Chosen from the compiler's report (tests/gpu/compile_report.py) so that nothing spills and every
    GPU has the shared memory.
    """
    if element_size > 2:
        return Config(16, 32, 32, 4, 1)  # float32 has no tensor cores to fill: this compiles fast
    # wgmma (9.0) or tcgen05 (10.x, 11.0), which take at least 64 rows.
    is_strong = gpu.has_strong_cores
    rows = triton.next_power_of_2(triton.cdiv(2 * num_pairs, num_experts))
    if settings.EXACT.is_on and is_strong:
        rows = max(rows, 64)  # one instruction for any number of pairs
    if rows <= 16:
        # Bound by memory: 32 rows of the weights make programs for every multiprocessor even with one token, and three
        # of a program's four steps in flight take 36 KiB.
        return Config(16, 32, 128, 4, 4)
    if rows == 32:
        return Config(32, 64, 128, 4, 3)
    if rows >= 128 and is_strong:
        return Config(128, 128, 64, 8, 3)
    return Config(64, 128, 64, 4 if is_strong else 8, 3)


@triton.jit
def _load_weights(ptrs, columns, ks, start, NUM_N: tl.constexpr, NUM_K: tl.constexpr, IS_EVEN: tl.constexpr):
    if IS_EVEN:
        return tl.load(ptrs + start)
    inside = (columns < NUM_N)[:, None] & (start + ks < NUM_K)[None, :]
    return tl.load(ptrs + start, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["num_pairs"])
def _grouped_matmul(
    x_ptr, weight_ptr, bias_ptr, out_ptr, pairs_ptr, tile_experts_ptr, num_pairs, x_stride,
    NUM_N: tl.constexpr, NUM_K: tl.constexpr, TOP_K: tl.constexpr, PAIRS_PER_ROW: tl.constexpr,
    IS_GATED: tl.constexpr, LIMIT: tl.constexpr, IS_GELU: tl.constexpr, DEPENDENT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[p] = w x[p // PAIRS_PER_ROW], or activation(gate x) · (up x), where w and [gate | up] are the expert's.

    out [pairs, NUM_N], x [·, NUM_K], weight [E, NUM_N or twice that, NUM_K]. Programs of one expert and neighbouring
    tiles run concurrently, so that weights which one program reads are in the L2 cache for the others.
    """
    wait_for_previous(DEPENDENT)
    expert, pairs = load_tile(pairs_ptr, tile_experts_ptr, num_pairs, TOP_K, triton.next_power_of_2(TOP_K), BLOCK_M)
    if expert < 0:
        return
    inside = pairs < num_pairs
    columns, ks = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + (pairs // PAIRS_PER_ROW).to(tl.int64)[:, None] * x_stride + ks[None, :]
    weight_ptr += expert * (2 * NUM_N if IS_GATED else NUM_N) * NUM_K
    weight_ptrs = weight_ptr + columns[:, None] * NUM_K + ks[None, :]
    IS_EVEN: tl.constexpr = NUM_N % BLOCK_N == 0 and NUM_K % BLOCK_K == 0
    out = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    up = out
    for start in range(0, NUM_K, BLOCK_K):
        x_inside = inside[:, None] if IS_EVEN else inside[:, None] & (start + ks < NUM_K)[None, :]
        x = tl.load(x_ptrs + start, mask=x_inside, other=0.0)
        weights = _load_weights(weight_ptrs, columns, ks, start, NUM_N, NUM_K, IS_EVEN)
        out = tl.dot(x, tl.trans(weights), out, input_precision="ieee")
        if IS_GATED:
            weights = _load_weights(weight_ptrs + NUM_N * NUM_K, columns, ks, start, NUM_N, NUM_K, IS_EVEN)
            up = tl.dot(x, tl.trans(weights), up, input_precision="ieee")
    if bias_ptr is not None:
        bias_ptrs = bias_ptr + expert * (2 * NUM_N if IS_GATED else NUM_N) + columns
        out += tl.load(bias_ptrs, mask=columns < NUM_N, other=0.0).to(tl.float32)[None, :]
        if IS_GATED:
            up += tl.load(bias_ptrs + NUM_N, mask=columns < NUM_N, other=0.0).to(tl.float32)[None, :]
    if IS_GATED and LIMIT > 0.0:
        out = tl.minimum(out, LIMIT)
        out = out / (1.0 + tl.exp(-1.702 * out)) * (tl.minimum(tl.maximum(up, -LIMIT), LIMIT) + 1.0)
    elif IS_GATED and IS_GELU:
        out = out / (1.0 + tl.exp(-1.5957691216 * (out + 0.044715 * out * out * out))) * up
    elif IS_GATED:
        out = out / (1.0 + tl.exp(-out)) * up
    out_ptrs = out_ptr + pairs.to(tl.int64)[:, None] * NUM_N + columns[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=inside[:, None] & (columns < NUM_N)[None, :])


@triton.jit
def _weigh(
    out_ptr, weights_ptr, ids_ptr, y_ptr, NUM_COLUMNS: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """y[t] = Σ_k weights[t, k] · out[t · TOP_K + k] in float32; pairs of expert -1 have no out."""
    wait_for_previous(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < NUM_COLUMNS
    total = tl.full([BLOCK], 0.0, tl.float32)
    for k in tl.static_range(TOP_K):
        pair = token * TOP_K + k
        is_routed = tl.load(ids_ptr + pair) >= 0
        out = tl.load(out_ptr + pair * NUM_COLUMNS + columns, mask=inside & is_routed, other=0.0)
        total += tl.load(weights_ptr + pair) * out.to(tl.float32)
    tl.store(y_ptr + token * NUM_COLUMNS + columns, total.to(y_ptr.dtype.element_ty), mask=inside)


def _multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tiles: ExpertTiles,
    *,
    is_gated: bool,
    args: ExpertArgs,
    config: Config,
) -> Tensor:
    """Multiply x [rows, in], a row or an equal number of pairs, by weight [E, out, in] → [num_pairs, out or half]."""
    _, num_rows, num_columns = weight.shape
    num_outputs, block_n = num_rows, config.BLOCK_N
    if is_gated:
        num_outputs, block_n = num_rows // 2, block_n // 2
    out = torch.empty((tiles.num_pairs, num_outputs), dtype=x.dtype, device=x.device)
    _grouped_matmul[tiles.grid(num_outputs, block_n)](
        x, weight, bias, out, tiles.pairs, tiles.experts, tiles.num_pairs, x.stride(0),
        NUM_N=num_outputs,
        NUM_K=num_columns,
        TOP_K=tiles.top_k,
        PAIRS_PER_ROW=tiles.num_pairs // len(x),
        IS_GATED=is_gated,
        LIMIT=args.limit,
        IS_GELU=args.is_gelu,
        **dependent_launch(device_info(x.device)),
        **config._replace(BLOCK_N=block_n)._asdict(),
    )  # fmt: skip
    return out


def experts(
    x: Tensor,
    weights: Tensor,
    expert_ids: Tensor,
    packed: PackedExperts | QuantizedExperts,
    *,
    config: Config | None = None,
) -> Tensor:
    """x [T, H] with contiguous rows, weights [T, K] float32, expert_ids [T, K] int32 → [T, H].

    Pairs of expert -1 count as 0 and read no weights.
    """
    assert x.stride(1) == 1
    assert weights.shape == expert_ids.shape
    assert weights.is_contiguous()
    if packed.args.weighs_inputs:
        x = (x.float()[:, None] * weights[:, :, None]).to(x.dtype).flatten(0, 1)  # a row for each pair
        weights = torch.ones_like(weights)
    if isinstance(packed, QuantizedExperts):
        return _weighed(quantized_experts.multiply(x, expert_ids, packed), weights, expert_ids, x.dtype)
    return _weighed(_pairs(x, expert_ids, packed, config), weights, expert_ids, x.dtype)


def _pairs(x: Tensor, expert_ids: Tensor, packed: PackedExperts, config: Config | None) -> Tensor:
    """Return the outputs of all pairs, [T · K, H]."""
    gate_up, down, gate_up_bias, down_bias, args = packed
    num_experts, hidden, inner = down.shape
    num_tokens, num_pairs = len(expert_ids), expert_ids.numel()
    assert gate_up.shape == (num_experts, 2 * inner, hidden)
    assert gate_up.is_contiguous()
    assert down.is_contiguous()
    assert x.shape == (num_pairs if args.weighs_inputs else num_tokens, hidden)
    assert x.dtype == gate_up.dtype == down.dtype
    config = config or choose_config(num_pairs, num_experts, x.element_size(), device_info(x.device))
    tiles = group_by_expert(expert_ids, num_experts=num_experts, block_m=config.BLOCK_M)
    activated = _multiply(x, gate_up, gate_up_bias, tiles, is_gated=True, args=args, config=config)
    return _multiply(activated, down, down_bias, tiles, is_gated=False, args=args, config=config)


def _weighed(out: Tensor, weights: Tensor, expert_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Σ_k weights[t, k] · out[t · K + k] → [T, H]."""
    (num_tokens, top_k), hidden = weights.shape, out.shape[1]
    y = torch.empty((num_tokens, hidden), dtype=dtype, device=out.device)
    block = min(triton.next_power_of_2(hidden), 1024)
    _weigh[(num_tokens, triton.cdiv(hidden, block))](
        out, weights, expert_ids, y, NUM_COLUMNS=hidden, TOP_K=top_k, BLOCK=block, num_warps=4,
        **dependent_launch(device_info(out.device)),
    )  # fmt: skip
    return y


def pack_experts(
    experts: Iterable[tuple[Tensor, Tensor, Tensor | None, Tensor | None]],
    *,
    num_experts: int,
    args: ExpertArgs = SWIGLU_EXPERTS,
) -> PackedExperts:
    """Fill one tensor with each part of all experts (gate_up, down and their biases), an expert at a time."""
    stacks: list[Tensor | None] = []
    index = -1
    for index, parts in enumerate(experts):
        stacks = stacks or [None if part is None else part.new_empty((num_experts, *part.shape)) for part in parts]
        for stack, part in zip(stacks, parts, strict=True):
            if stack is not None and part is not None:
                stack[index] = part
    assert index == num_experts - 1
    gate_up, down, gate_up_bias, down_bias = stacks
    assert gate_up is not None
    assert down is not None
    return PackedExperts(gate_up, down, gate_up_bias, down_bias, args)
