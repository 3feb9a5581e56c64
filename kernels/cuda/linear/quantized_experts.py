# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Experts whose weights stay packed: the mixture of moe.py with the tiles of quantized_tile.py.

All experts' matrices are one QuantizedLinear with E · N outputs. A row of x is prepared once for all of its experts. At
n tokens per expert 2 · n / (bits / 8) operations per byte are done, so memory is the bound up to some 150 tokens each.
Where inputs may be rounded, many pairs go through fp8_experts.py or int8_linear.py.
The activation is a kernel of its own, because gate and up in one program would need twice the registers.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...arguments import SWIGLU_EXPERTS, ExpertArgs
from ...quantize import QuantizedWeight
from ...reference import clamped_swiglu
from .. import device_info as settings
from .. import quantized_linear
from ..activation import gelu_tanh_mul, silu_mul
from ..dependent import wait_for_previous
from ..device_info import DeviceInfo, dependent_launch, device_info
from ..moe_route import ExpertTiles, group_by_expert, load_tile
from ..quantized_linear import Config, QuantizedLinear, prepare, with_scale_of_each
from . import byte_linear, few_rows, fp8_experts, int8_linear
from .fp8_linear import round_rows
from .int8_linear import Int8Linear
from .quantized_tile import add_offsets, inputs_of_dot, load_scales, multiply_steps, unit

AnyPacked = QuantizedLinear | Int8Linear
AnyConfig = Config | byte_linear.Config | fp8_experts.Config


class QuantizedExperts(NamedTuple):
    gate_up: AnyPacked  # [E · 2·I, H]
    down: AnyPacked  # [E · H, I], of gate_up's class
    num_experts: int
    gate_up_bias: Tensor | None = None  # [E, 2·I]
    down_bias: Tensor | None = None  # [E, H]
    gate_up_order: Tensor | None = None  # [E, H] int64: each expert's QuantizedWeight.order
    down_order: Tensor | None = None  # [E, I] int64
    args: ExpertArgs = SWIGLU_EXPERTS


def choose_config(num_pairs: int, element_size: int, weight: AnyPacked, num_experts: int, gpu: DeviceInfo) -> AnyConfig:
    """Choose the tile for twice an expert's average number of pairs, as moe.py does."""
    if isinstance(weight, Int8Linear):
        return byte_linear.choose_config(2 * num_pairs // num_experts, 0, gpu)
    if element_size > 2:
        return Config(16, 32, 4, 1)
    is_small, is_e2m1 = 2 * num_pairs <= 16 * num_experts, weight.is_float and weight.bits == 4
    if weight.rounds_inputs and weight.is_float and gpu.has_fp8_matmul and not is_small:
        return fp8_experts.choose_config(num_pairs, num_experts, gpu)
    if gpu.capability == 90:
        return _choose_on_hopper(num_pairs, weight, num_experts, is_e2m1=is_e2m1)
    if is_e2m1 and 2 * num_pairs <= 8 * num_experts and not gpu.is_amd:
        return Config(8, 64, 2, 4)  # half the sums to scale: 70 % of the issue slots instead of 88
    if is_small or weight.bits == 4:  # without wgmma x takes registers: 32 rows of 4 bits spill
        return Config(16, 64, 4 if 0 < weight.group < 64 and gpu.capability < (90 if is_e2m1 else 89) else 2, 4)
    return Config(32, 64, 2, 2) if 100 <= gpu.capability < 120 else Config(32, 128, 4, 2)


def _choose_on_hopper(num_pairs: int, weight: QuantizedLinear, num_experts: int, *, is_e2m1: bool) -> Config:
    """Choose one of 11 to 14 tiles by an H200, 2026-11-27.

    8 of 128 experts of 2048 x 768, 1, 32, 256 and 4096 tokens, us before and with these tiles: e4m3 in blocks 52 to 30,
    326 to 164, 333 to 283, 1513 to 1244; int4 47 to 24, 280 to 122, 268 to 254, 1738 to 1552.
    """
    if 2 * num_pairs <= 8 * num_experts:
        if is_e2m1:  # 4 of 32 experts, 1 token: 55 us, with half the outputs 44
            return Config(8, 32, 2, 6) if num_pairs < num_experts else Config(8, 64, 2, 4)
        return Config(8, 64, 2 if weight.bits == 8 else 4, 4)
    if 2 * num_pairs <= 16 * num_experts:
        return Config(16, 128, 4, 3)  # wgmma reads x by itself
    if num_pairs <= 32 * num_experts:
        return Config(32, 128, 4, 3)
    if is_e2m1:
        return Config(64, 64, 4, 3)
    return Config(64, 128, 8 if 0 < weight.group < 64 or weight.bits == 4 else 4, 3)


@triton.jit(do_not_specialize=["num_pairs", "num_rows", "padded_rows"])
def _quantized_experts(
    x_ptr, sums_ptr, factors_ptr, w_ptr, scales_ptr, offsets_ptr, bias_ptr, out_ptr, pairs_ptr, tile_experts_ptr,
    num_pairs, num_rows, padded_rows, NUM_N: tl.constexpr, NUM_EXPERTS: tl.constexpr, NUM_K: tl.constexpr,
    TOP_K: tl.constexpr, PAIRS_PER_ROW: tl.constexpr, GROUP: tl.constexpr, BLOCK_K: tl.constexpr, BITS: tl.constexpr,
    ZERO: tl.constexpr, IS_FLOAT: tl.constexpr, SCALE_ROWS: tl.constexpr, DEPENDENT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[p] = w x[p // PAIRS_PER_ROW], where w [NUM_N, NUM_K] is the tile's expert's."""
    wait_for_previous(DEPENDENT)
    expert, pairs = load_tile(pairs_ptr, tile_experts_ptr, num_pairs, TOP_K, triton.next_power_of_2(TOP_K), BLOCK_M)
    if expert < 0:
        return
    STEP: tl.constexpr = 32 // BITS * BLOCK_K
    IS_WIDE: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    # Padding has any row, because it is not stored.
    rows = tl.minimum(pairs // PAIRS_PER_ROW, num_rows - 1)
    columns, ks = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    readable = tl.minimum(columns, NUM_N - 1)
    outputs = expert * NUM_N + readable
    NUM_SCALES: tl.constexpr = (NUM_N + SCALE_ROWS - 1) // SCALE_ROWS
    scale_ptrs = scales_ptr + expert * NUM_SCALES + readable // SCALE_ROWS
    x_ptrs = x_ptr + rows.to(tl.int64)[None, :] * NUM_K + inputs_of_dot(BLOCK_K, BITS, IS_FLOAT)[:, None]
    w_ptrs = w_ptr + outputs[:, None] * (NUM_K * BITS // 32) + ks[None, :]
    out = tl.full([BLOCK_N, BLOCK_M], 0.0, tl.float32)
    out = multiply_steps(
        out, x_ptrs, w_ptrs, scale_ptrs, 0, NUM_K // STEP, NUM_EXPERTS * NUM_SCALES, GROUP, BLOCK_K, BITS, IS_FLOAT,
        IS_WIDE,
    )  # fmt: skip
    if GROUP:
        NUM_GROUPS: tl.constexpr = NUM_K // GROUP
        NUM_OUTPUTS: tl.constexpr = NUM_EXPERTS * NUM_N
        sum_ptrs = sums_ptr + rows
        if ZERO:
            out = add_offsets(out, scale_ptrs, sum_ptrs, 0, NUM_GROUPS, -ZERO * 1.0, NUM_OUTPUTS, padded_rows, IS_WIDE)
        if offsets_ptr is not None:
            out = add_offsets(
                out, offsets_ptr + outputs, sum_ptrs, 0, NUM_GROUPS, 1.0, NUM_OUTPUTS, padded_rows, IS_WIDE
            )
    else:
        if ZERO:
            out -= ZERO * tl.load(sums_ptr + rows)[None, :]
        out *= load_scales(scale_ptrs, 0, 0)[:, None]
    out = out * unit(BITS, IS_FLOAT, IS_WIDE) * tl.load(factors_ptr + rows)[None, :]
    if bias_ptr is not None:
        out += tl.load(bias_ptr + outputs).to(tl.float32)[:, None]
    out_ptrs = out_ptr + pairs.to(tl.int64)[None, :] * NUM_N + columns[:, None]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=(pairs < num_pairs)[None, :] & (columns < NUM_N)[:, None])


def _multiply(x: Tensor, weight: AnyPacked, bias: Tensor | None, tiles: ExpertTiles, config: AnyConfig) -> Tensor:
    """Multiply x [rows, in], each row for an equal number of pairs → [num_pairs, out]."""
    if isinstance(weight, Int8Linear):
        assert isinstance(config, byte_linear.Config)
        own = few_rows.Weight(weight.values, weight.scales, None if bias is None else bias.flatten())
        rounded, x_scales = round_rows(x, dtype=torch.int8)
        return byte_linear.multiply_pairs(rounded, x_scales, own, tiles, dtype=x.dtype, config=config)
    if isinstance(config, fp8_experts.Config):
        return fp8_experts.multiply_pairs(x, weight, bias, tiles, config)
    rows, num_outputs = prepare(x, weight, multiple=1), len(weight.values) // tiles.num_experts
    out = torch.empty((tiles.num_pairs, num_outputs), dtype=x.dtype, device=x.device)
    _quantized_experts[tiles.grid(num_outputs, config.BLOCK_N)](
        rows.values, rows.sums, rows.factors, weight.values, weight.scales, weight.offsets, bias, out, tiles.pairs,
        tiles.experts, tiles.num_pairs, len(x), len(rows.values),
        NUM_N=num_outputs,
        NUM_EXPERTS=tiles.num_experts,
        NUM_K=weight.padded_inputs,
        TOP_K=tiles.top_k,
        PAIRS_PER_ROW=tiles.num_pairs // len(x),
        GROUP=weight.group,
        BLOCK_K=weight.block,
        BITS=weight.bits,
        ZERO=weight.zero,
        IS_FLOAT=weight.is_float,
        SCALE_ROWS=weight.scale_rows,
        **dependent_launch(device_info(x.device)),
        **config._asdict(),
    )  # fmt: skip
    return out


def multiply(x: Tensor, expert_ids: Tensor, packed: QuantizedExperts) -> Tensor:
    """x [T, H], or a row for each pair, rows contiguous; expert_ids [T, K] int32 → outputs of all pairs, [T · K, H]."""
    gate_up, down, num_experts, gate_up_bias, down_bias, gate_up_order, down_order, args = packed
    num_pairs = expert_ids.numel()
    assert len(x) in (len(expert_ids), num_pairs)
    tile_pairs = 8 * num_experts if settings.EXACT.is_on else num_pairs  # exact: one tile for any number of pairs
    config = choose_config(tile_pairs, x.element_size(), gate_up, num_experts, device_info(x.device))
    tiles = group_by_expert(expert_ids, num_experts=num_experts, block_m=config.BLOCK_M)
    inner = _multiply(_in_order(x, expert_ids, gate_up_order), gate_up, gate_up_bias, tiles, config)
    return _multiply(_in_order(_activated(inner, args), expert_ids, down_order), down, down_bias, tiles, config)


def _activated(gate_up: Tensor, args: ExpertArgs) -> Tensor:
    if args.limit:
        return clamped_swiglu(gate_up.float(), limit=args.limit).to(gate_up.dtype)
    return gelu_tanh_mul(gate_up) if args.is_gelu else silu_mul(gate_up)


def _in_order(x: Tensor, expert_ids: Tensor, order: Tensor | None) -> Tensor:
    """Return a row for each pair, in its expert's order of inputs (act-order, which few mixtures have)."""
    if order is None:
        return x
    pairs = x[:, None].expand(-1, expert_ids.numel() // len(x), -1).flatten(0, 1)
    return pairs.gather(1, order.index_select(0, expert_ids.flatten().clamp_min(0)))


def pack(
    experts: Iterable[tuple[QuantizedWeight | None, QuantizedWeight | None, Tensor | None, Tensor | None]],
    *,
    num_experts: int,
    args: ExpertArgs = SWIGLU_EXPERTS,
    is_int8: bool = False,
    rounds_inputs: bool = False,
) -> QuantizedExperts:
    """Pack experts (gate_up [2·I, H], down [H, I], their biases), all of one form, one at a time.

    `is_int8`: for products in int8, whose layout all have. `rounds_inputs`: inputs of weights in e4m3 are rounded, too.
    """
    stacks: list[AnyPacked] = []
    tensors: list[Tensor | None] = [None] * 4
    for index, (gate_up, down, *biases) in enumerate(experts):
        assert gate_up is not None
        assert down is not None
        weights = (gate_up, down)
        parts = [int8_linear.pack(w, None) if is_int8 else quantized_linear.pack(w, None) for w in weights]
        stacks = stacks or [_empty_stack(part, num_experts) for part in parts]
        stacks = [_filled(stack, part, index) for stack, part in zip(stacks, parts, strict=True)]
        for place, part in enumerate((*biases, gate_up.order, down.order)):
            if part is not None:
                whole = tensors[place]
                whole = part.new_empty((num_experts, *part.shape)) if whole is None else whole
                whole[index], tensors[place] = part, whole
    gate_up_stack, down_stack = stacks
    if isinstance(gate_up_stack, QuantizedLinear) and isinstance(down_stack, QuantizedLinear) and rounds_inputs:
        rounds_inputs = fp8_experts.has_layout(gate_up_stack) and fp8_experts.has_layout(down_stack)
        gate_up_stack, down_stack = (
            stack._replace(rounds_inputs=rounds_inputs or stack.rounds_inputs) for stack in (gate_up_stack, down_stack)
        )
    gate_up_bias, down_bias, gate_up_order, down_order = tensors
    return QuantizedExperts(
        gate_up_stack, down_stack, num_experts, gate_up_bias, down_bias, gate_up_order, down_order, args
    )


def _parts(packed: AnyPacked) -> Iterator[tuple[str, Tensor, int]]:
    """Yield the weight's tensors: name, tensor, dimension of the outputs."""
    for name, part in packed._asdict().items():
        if isinstance(part, Tensor):
            yield name, part, 0 if name == "values" else part.ndim - 1


def _empty_stack(packed: AnyPacked, num_experts: int) -> AnyPacked:
    stacks: dict[str, Any] = {}
    for name, part, dim in _parts(packed):
        shape = list(part.shape)
        shape[dim] *= num_experts
        stacks[name] = part.new_empty(shape)
    return packed._replace(**stacks)


def _filled(stack: AnyPacked, packed: AnyPacked, index: int) -> AnyPacked:
    """Write an expert's weight into the stack. By chance only some experts may have equal scales in blocks."""
    if isinstance(stack, QuantizedLinear) and isinstance(packed, QuantizedLinear):
        if packed.scale_rows > stack.scale_rows:
            packed = with_scale_of_each(packed)
        elif packed.scale_rows < stack.scale_rows:
            stack = with_scale_of_each(stack)
    assert _form(stack) == _form(packed), "experts of different forms"
    wholes = {name: whole for name, whole, _ in _parts(stack)}
    for name, part, dim in _parts(packed):
        size = part.shape[dim]
        wholes[name].narrow(dim, index * size, size).copy_(part)
    return stack


def _form(packed: AnyPacked) -> list[object]:
    return [part.dtype if isinstance(part, Tensor) else part for part in packed]
