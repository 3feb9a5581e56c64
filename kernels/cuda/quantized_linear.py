# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products with quantized weights (quantize.py): y = x wᵀ, w = scale · (u - zero) + offset, or scale · e4m3
or e2m1.

Few rows: one program takes BLOCK_N outputs and BLOCK_M rows, and multiplies codes as they are stored, in float16
(linear/quantized_tile.py). Scale and offset are applied after the dots, per output or per output and group: Σ x · w =
scale · Σ x · u + (offset - scale · zero) · Σ x, with a group's Σ x from the kernel that also rounds x. At 4 bits N·K/2
bytes of values (and up to 8·N·K/group of scales and offsets) are read for 2·M·N·K operations: 4·M per byte, so bound by
memory up to some 64 rows. If too few outputs would leave multiprocessors idle, K is split, and a second kernel adds.
Many rows: the weight is widened once into a buffer and cuBLAS multiplies. This moves N·K·(bits/8 + 4) more bytes,
0.06 ms of an H100 for 4096 x 14336, where the product of 2048 rows takes 0.3 ms.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ..quantize import QuantizedWeight, multiplied, round_rows
from . import device_info as settings
from .dependent import wait_for_previous
from .device_info import DeviceInfo, dependent_launch, device_info
from .linear.few_rows import add_splits
from .linear.quantized_tile import (
    E2M1_UNIT,
    add_offsets,
    code_of,
    from_bits,
    inputs_of_dot,
    load_scales,
    multiply_steps,
    prepare_rows,
    unit,
)

# Number of rows from which a widened copy and cuBLAS are used. Untuned.
MIN_ROWS_TO_WIDEN = 257
# K is split as long as a program has so many steps.
MIN_SPLIT_STEPS = 4
_GROUPS = (16, 32, 64, 128)  # possible numbers of inputs with one scale
_SCALE_ROWS = 128  # outputs that share a scale in FP8 files' blocks
_MAX_BLOCK_K = 32  # twice that would need twice the shared memory for x, and inputs in multiples of 512


class QuantizedLinear(NamedTuple):
    """Weight [N, K] of codes of 8 or 4 bits, laid out for `multiply`."""

    values: Tensor  # [N, steps · block] int32, codes in the order of quantized_tile.py; beyond K they are 0
    # [G, ⌈N / scale_rows⌉] float32 or float16; groups beyond K are 0. For e8m0 [steps, …] int32: 4 exponents
    scales: Tensor
    offsets: Tensor | None  # [G, N] float32 or float16
    bias: Tensor | None  # [N]
    num_inputs: int  # K
    block: int  # inputs of a dot
    bits: int
    zero: int = 0  # subtracted from codes
    is_float: bool = False  # True: codes are e4m3 or e2m1
    rounds_inputs: bool = False  # True: rows are rounded first, to int8 (W8A8) or, for experts, to e4m3
    scale_rows: int = 1  # number of neighbouring outputs that share a scale; more than 1: no zero, no offsets

    @property
    def step(self) -> int:
        """Number of inputs whose codes are in the same words."""
        return 32 // self.bits * self.block

    @property
    def padded_inputs(self) -> int:
        return self.values.shape[1] // self.block * self.step

    @property
    def group(self) -> int:
        """Number of inputs that share a scale; 0: all."""
        if self.scales.dtype == torch.int32:
            return self.step // 4
        return 0 if len(self.scales) == 1 and self.offsets is None else self.padded_inputs // len(self.scales)


class Config(NamedTuple):
    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int


def choose_config(
    num_rows: int, num_outputs: int, element_size: int, group: int, gpu: DeviceInfo, *, is_e2m1: bool = False
) -> Config:
    """Choose the tile: few instructions, no spills (tests/gpu/compile_report.py), on 9.0 the best of 7 to 9 on an H200.

    A warp takes 32 outputs where it can, so that instructions beside the weights' stay fewer than the weights.
    """
    if element_size > 2:
        return Config(16, 32, 4, 1)  # float32 has no tensor cores to fill: this compiles fast
    if num_rows <= 8 and not gpu.is_amd:  # AMD's matrix cores take 16 rows
        if gpu.capability == 90 and not is_e2m1 and num_outputs >= 128 * gpu.num_multiprocessors:
            return Config(8, 64, 4, 5) if group else Config(8, 32, 2, 6)  # 1 x 4096 -> 28672: 39 to 33 us, 47 to 38
        return Config(8, 64, 2 if is_e2m1 else 4, 4)
    is_fine = 0 < group < 64
    if num_rows <= 16:
        return Config(16, 64, 4 if is_fine and gpu.capability < (90 if is_e2m1 else 89) else 2, 4)
    stages = 3 if gpu.shared_memory >= 160 * 1024 else 2
    if is_e2m1:  # with 64 rows all tiles spill
        return Config(32, 128, 4, 2) if gpu.capability == 90 else Config(32, 64, 2, stages)
    if 100 <= gpu.capability < 120:
        return Config(32, 64, 2, stages)  # with 4 warps the weights would go through tensor memory, and not fit
    if num_rows <= 32 and gpu.capability == 90 and not is_fine and num_outputs < 128 * gpu.num_multiprocessors:
        return Config(32, 64, 4, 3)  # H200, 2026-11-27, us of 32 x 4096 -> 4096: 18 to 16 in 4 bits, 16 to 14 in 8
    if num_rows <= 32 or gpu.capability != 90:
        return Config(32, 128, 4, stages)  # without wgmma x takes registers, and 64 rows spill
    # H100, 2026-11-27, us of 64 and 256 x 4096 -> 28672. One scale for an output:
    if not group:
        return Config(64, 128, 4, 3)  # 53 and 152; 2 stages 61 and 194, tiles of 128 x 64 86 and 169
    # Scales for groups of 128: 59 and 191 with 64 rows a tile, 95 and 183 with 128.
    return Config(128, 128, 8, 3) if num_rows > 64 and not is_fine else Config(64, 128, 8 if is_fine else 4, 2)


def choose_num_splits(num_outputs: int, num_steps: int, config: Config, gpu: DeviceInfo) -> int:
    """Return the number of parts of K that are summed concurrently: the same for any number of rows in a tile.

    A multiprocessor gets two programs, an H200's three, 2026-11-27: us of 16 x 4096 -> 6144 in int4 and in e4m3 blocks
    18.2 to 16.8 and 22.8 to 18.0, of 16 x 14336 -> 4096 in int4 32.1 to 28.2.
    """
    num_programs = -(-num_outputs // config.BLOCK_N)
    wanted = (3 if gpu.capability == 90 else 2) * gpu.num_multiprocessors // num_programs
    return max(min(wanted, num_steps // MIN_SPLIT_STEPS, 8), 1)


def has_layout(weight: QuantizedWeight) -> bool:
    """True if a group of the weight fits a dot's groups; 2 and 3 bits are stored in 4, 5 and 6 in 8."""
    return _is_plain(weight) or _dot_group(weight) in _GROUPS


def _is_plain(weight: QuantizedWeight) -> bool:
    return weight.bits > 4 and len(weight.scales) == 1 and weight.offsets is None and weight.super_scales is None


def _dot_group(weight: QuantizedWeight) -> int:
    """Return the part of a weight's group that gets its own sum."""
    return _GROUPS[-1] if weight.group % _GROUPS[-1] == 0 else weight.group


def pack(weight: QuantizedWeight, bias: Tensor | None) -> QuantizedLinear:
    """Pack weight.values [N, K] into words. `order` is dropped."""
    weight = weight.without_codebook()
    is_float = weight.is_float4 or weight.values.dtype == torch.float8_e4m3fn
    bits = 4 if weight.bits <= 4 else 8
    (num_outputs, num_inputs), is_plain = weight.values.shape, _is_plain(weight)
    group = 0 if is_plain else _dot_group(weight)
    per_step = 32 // bits
    # In e2m1 a dot takes two blocks of one group.
    block = min((group // 2 if weight.is_float4 else group) or _MAX_BLOCK_K, _MAX_BLOCK_K)
    if num_inputs % (per_step * block):
        block = min(block, 16)
    padded = triton.cdiv(num_inputs, per_step * block) * per_step * block
    scales, offsets = (
        None if lower is None else _grouped(_level(lower, upper), num_inputs, group, padded)
        for lower, upper in ((weight.scales, weight.super_scales), (weight.offsets, weight.super_offsets))
    )
    assert scales is not None
    scale_rows = _SCALE_ROWS if is_float and _is_shared(scales) else 1
    scales = scales[:, ::scale_rows].contiguous()
    if weight.is_float4:
        scales = scales * 2  # the codebook's numbers are doubled
    if weight.is_float4 and per_step * block == 4 * group:
        scales = _exponents(scales)
    zero = 2 ** (bits - 1) if weight.values.dtype == torch.int8 else 0
    codes = F.pad(weight.values.view(torch.uint8), (0, padded - num_inputs)) + zero  # uint8 wraps around
    if bits == 4:
        codes &= 15
    parts = codes.view(num_outputs, -1, per_step, block)
    if weight.is_float4:
        parts = codes.view(num_outputs, -1, per_step // 2, block, 2).transpose(3, 4).flatten(2, 3)
    words = torch.zeros((num_outputs, parts.shape[1], block), dtype=torch.int32, device=codes.device)
    for index in range(per_step):
        words |= _placed(parts[:, :, index].to(torch.int32), index, bits, is_float)
    return QuantizedLinear(
        words.flatten(1), scales, offsets, bias, num_inputs, block, bits, zero, is_float,
        weight.rounds_inputs, scale_rows,
    )  # fmt: skip


def _is_shared(scales: Tensor) -> bool:
    """True if scales [G, N] are equal in runs of _SCALE_ROWS outputs: 8.002 instead of 8.25 bits a weight."""
    runs = scales[:, ::_SCALE_ROWS].repeat_interleave(_SCALE_ROWS, dim=1)
    return torch.equal(runs[:, : scales.shape[1]], scales)


def _exponents(scales: Tensor) -> Tensor:
    """Return powers of two [G, N] as exponents of e8m0 [G / 4, N] int32, 4.25 bits a weight; other scales unchanged."""
    bits = scales.float().view(torch.int32)
    is_power = (bits & -0x7F800001) == 0
    smallest = bits == 1 << 22  # 2^-127 becomes 0: no sum of a float32 would show it
    if not bool((is_power | smallest).all()):
        return scales
    first, second, third, fourth = (bits >> 23).view(-1, 4, bits.shape[1]).unbind(1)
    return first | second << 8 | third << 16 | fourth << 24


def with_scale_of_each(packed: QuantizedLinear) -> QuantizedLinear:
    """Return the weight with a scale for each output."""
    scales = packed.scales.repeat_interleave(packed.scale_rows, dim=1)[:, : len(packed.values)]
    return packed._replace(scales=scales.contiguous(), scale_rows=1)


def _shift(index: Any, bits: int) -> Any:
    """Return the lowest bit of a block's codes in words, but for e2m1; `index`: an int or a tensor."""
    return index // 2 * bits + index % 2 * 16


def _e2m1_shifts(index: int) -> tuple[int, int]:
    """Return the bits of a block's magnitudes and signs in words, as `quantized_tile.code_of` has them."""
    pair, half = index // 2, index % 2 * 16
    return 9 - 3 * pair + half, 12 + (pair + 3) % 4 + half


def _placed(codes: Tensor, index: int, bits: int, is_float: bool) -> Tensor:
    """Return words with a block's codes alone."""
    if not (is_float and bits == 4):
        return codes << int(_shift(index, bits))
    magnitude, sign = _e2m1_shifts(index)
    return (codes & 7) << magnitude | (codes >> 3) << sign


def _grouped(level: Tensor, num_inputs: int, group: int, padded: int) -> Tensor:
    """Repeat scales or offsets for parts of their groups, and append the padding's."""
    if not group:
        return level
    fine = level.repeat_interleave(num_inputs // group // len(level), dim=0)
    return F.pad(fine, (0, 0, 0, triton.cdiv(padded, group) - len(fine)))


def _level(lower: Tensor, upper: Tensor | None) -> Tensor:
    return lower if upper is None else multiplied(lower, upper)


@triton.jit(do_not_specialize=["num_rows", "padded_rows"])
def _quantized_matmul(
    x_ptr, sums_ptr, factors_ptr, w_ptr, scales_ptr, offsets_ptr, bias_ptr, out_ptr, num_rows, padded_rows,
    NUM_N: tl.constexpr, NUM_K: tl.constexpr, SPLIT_STEPS: tl.constexpr, IS_SPLIT: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_K: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr, IS_FLOAT: tl.constexpr, SCALE_ROWS: tl.constexpr,
    DEPENDENT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write out [rows, NUM_N], if split sums without a bias, [splits, rows, NUM_N]. x comes from `prepare_rows`."""
    wait_for_previous(DEPENDENT)
    # Programs of equal outputs run concurrently, so that weights which one program reads are in L2 for the others.
    STEP: tl.constexpr = 32 // BITS * BLOCK_K
    IS_WIDE: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split, ks = tl.program_id(2), tl.arange(0, BLOCK_K)
    inside = columns < NUM_N
    readable = tl.minimum(columns, NUM_N - 1)  # instead of masks: outputs beyond the last are not stored
    first_step = split * SPLIT_STEPS
    end_step = tl.minimum(first_step + SPLIT_STEPS, NUM_K // STEP)
    x_ptrs = x_ptr + rows.to(tl.int64)[None, :] * NUM_K + inputs_of_dot(BLOCK_K, BITS, IS_FLOAT)[:, None]
    w_ptrs = w_ptr + readable.to(tl.int64)[:, None] * (NUM_K * BITS // 32) + ks[None, :]
    scale_ptrs = scales_ptr + readable // SCALE_ROWS
    NUM_SCALES: tl.constexpr = (NUM_N + SCALE_ROWS - 1) // SCALE_ROWS
    out = tl.full([BLOCK_N, BLOCK_M], 0.0, tl.float32)
    out = multiply_steps(
        out, x_ptrs, w_ptrs, scale_ptrs, first_step, end_step, NUM_SCALES, GROUP, BLOCK_K, BITS, IS_FLOAT, IS_WIDE
    )
    if GROUP:
        first_group, end_group = first_step * STEP // GROUP, end_step * STEP // GROUP
        sum_ptrs = sums_ptr + rows
        if ZERO:
            out = add_offsets(
                out, scale_ptrs, sum_ptrs, first_group, end_group, -ZERO * 1.0, NUM_N, padded_rows, IS_WIDE
            )
        if offsets_ptr is not None:
            out = add_offsets(
                out, offsets_ptr + readable, sum_ptrs, first_group, end_group, 1.0, NUM_N, padded_rows, IS_WIDE
            )
    else:
        if ZERO and split == 0:
            out -= ZERO * tl.load(sums_ptr + rows)[None, :]
        out *= load_scales(scale_ptrs, 0, 0)[:, None]
    out = out * unit(BITS, IS_FLOAT, IS_WIDE) * tl.load(factors_ptr + rows)[None, :]
    out_ptrs = out_ptr + rows.to(tl.int64)[None, :] * NUM_N + columns[:, None]
    if IS_SPLIT:
        out_ptrs += split.to(tl.int64) * num_rows * NUM_N
    elif bias_ptr is not None:
        out += tl.load(bias_ptr + readable).to(tl.float32)[:, None]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=(rows < num_rows)[None, :] & inside[:, None])


@triton.jit
def _widen_weight(
    w_ptr, scales_ptr, offsets_ptr, out_ptr, NUM_N: tl.constexpr, NUM_K: tl.constexpr, WORDS: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_K: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr, IS_FLOAT: tl.constexpr,
    SCALE_ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out [NUM_N, NUM_K] = w: reads bits/8 bytes per weight and writes 2."""
    row, ks = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ks < NUM_K
    STEP: tl.constexpr = 32 // BITS * BLOCK_K
    if IS_FLOAT and BITS == 4:
        part, place = ks % STEP // (2 * BLOCK_K) * 2 + ks % 2, ks % (2 * BLOCK_K) // 2
    else:
        part, place = ks % STEP // BLOCK_K, ks % BLOCK_K
    words = tl.load(w_ptr + row * WORDS + ks // STEP * BLOCK_K + place, mask=inside, other=0)
    code = code_of(words, part, BITS, IS_FLOAT)
    if IS_FLOAT:
        u = from_bits(code, BITS) * unit(BITS, IS_FLOAT, False)
    else:
        u = (code - ZERO).to(tl.float32)
    group = tl.minimum(ks, NUM_K - 1) // GROUP if GROUP else ks * 0
    w = u * load_scales(scales_ptr + row // SCALE_ROWS, group, (NUM_N + SCALE_ROWS - 1) // SCALE_ROWS)
    if offsets_ptr is not None:
        w += tl.load(offsets_ptr + group * NUM_N + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * NUM_K + ks, w.to(out_ptr.dtype.element_ty), mask=inside)


def widen(packed: QuantizedLinear, dtype: torch.dtype) -> Tensor:
    """Return the weight [N, K] in `dtype`."""
    num_outputs, num_words = packed.values.shape
    out = torch.empty((num_outputs, packed.num_inputs), dtype=dtype, device=packed.values.device)
    _widen_weight[(num_outputs, triton.cdiv(packed.num_inputs, 1024))](
        packed.values, packed.scales, packed.offsets, out, NUM_N=num_outputs, NUM_K=packed.num_inputs, WORDS=num_words,
        GROUP=packed.group, BLOCK_K=packed.block, BITS=packed.bits, ZERO=packed.zero, IS_FLOAT=packed.is_float,
        SCALE_ROWS=packed.scale_rows, BLOCK=1024,
    )  # fmt: skip
    return out


class PreparedRows(NamedTuple):
    """Rows as operands of the product: x = values · factors."""

    values: Tensor  # [M, padded inputs] float16 or float32, M a multiple of the tile's rows
    sums: Tensor  # [groups or 1, M] float32
    factors: Tensor  # [M] float32


def prepare(x: Tensor, packed: QuantizedLinear, *, multiple: int) -> PreparedRows:
    """Scale or round x [T, K], contiguous rows, for a weight, and sum its groups."""
    num_rows, num_inputs = x.shape
    padded_rows, padded = triton.cdiv(num_rows, multiple) * multiple, packed.padded_inputs
    dtype = torch.float32 if x.dtype == torch.float32 else torch.float16
    values = torch.empty((padded_rows, padded), dtype=dtype, device=x.device)
    num_groups = padded // packed.group if packed.group else 1
    sums = torch.empty((num_groups, padded_rows), dtype=torch.float32, device=x.device)
    factors = torch.empty(padded_rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(padded)
    prepare_rows[(padded_rows,)](
        x, values, sums, factors, num_rows, x.stride(0), NUM_K=num_inputs, PADDED_K=padded, GROUP=packed.group,
        BLOCK_K=packed.block, BITS=packed.bits, IS_FLOAT=packed.is_float, IS_WIDE=dtype == torch.float32,
        ROUNDS=packed.rounds_inputs, BLOCK=block, num_warps=min(max(block // 512, 1), 16),
        **dependent_launch(device_info(x.device)),
    )  # fmt: skip
    return PreparedRows(values, sums, factors)


def multiply(
    x: Tensor, packed: QuantizedLinear, *, config: Config | None = None, num_splits: int | None = None
) -> Tensor:
    """x [T, K] with contiguous rows → [T, N] in x's dtype."""
    num_rows, num_inputs = x.shape
    num_outputs = len(packed.values)
    assert num_inputs == packed.num_inputs
    assert x.stride(1) == 1
    if config is None and num_rows >= MIN_ROWS_TO_WIDEN and not settings.EXACT.is_on:
        return F.linear(_rounded(x, packed), widen(packed, x.dtype), packed.bias)
    gpu = device_info(x.device)
    is_e2m1 = packed.is_float and packed.bits == 4
    # Exact mode has one tile, so one instruction, for any number of rows: the 64-row tile where wgmma exists.
    tile_rows = num_rows if not settings.EXACT.is_on else 64 if gpu.has_strong_cores else 16
    config = config or choose_config(tile_rows, num_outputs, x.element_size(), packed.group, gpu, is_e2m1=is_e2m1)
    rows = prepare(x, packed, multiple=config.BLOCK_M)
    num_steps = packed.padded_inputs // packed.step
    num_splits = num_splits or choose_num_splits(num_outputs, num_steps, config, gpu)
    split_steps = triton.cdiv(num_steps, num_splits)
    num_splits = triton.cdiv(num_steps, split_steps)
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    sums = out
    if num_splits > 1:
        sums = torch.empty((num_splits, num_rows, num_outputs), dtype=torch.float32, device=x.device)
    grid = (len(rows.values) // config.BLOCK_M, triton.cdiv(num_outputs, config.BLOCK_N), num_splits)
    _quantized_matmul[grid](
        rows.values, rows.sums, rows.factors, packed.values, packed.scales, packed.offsets, packed.bias, sums, num_rows,
        len(rows.values),
        NUM_N=num_outputs,
        NUM_K=packed.padded_inputs,
        SPLIT_STEPS=split_steps,
        IS_SPLIT=num_splits > 1,
        GROUP=packed.group,
        BLOCK_K=packed.block,
        BITS=packed.bits,
        ZERO=packed.zero,
        IS_FLOAT=packed.is_float,
        SCALE_ROWS=packed.scale_rows,
        **dependent_launch(gpu),
        **config._asdict(),
    )  # fmt: skip
    if num_splits > 1:
        add_splits(sums, packed.bias, out)
    return out


def _rounded(x: Tensor, packed: QuantizedLinear) -> Tensor:
    """Round rows to int8 and back if the weight asks for it."""
    if not packed.rounds_inputs:
        return x
    values, scales = round_rows(x)
    return (values * scales).to(x.dtype)


def _codes(words: Tensor, packed: QuantizedLinear) -> Tensor:
    """Return the codes [T, padded K] of words [T, steps, 1, block]."""
    if packed.is_float and packed.bits == 4:
        shifts = map(_e2m1_shifts, range(8))
        parts = torch.cat([words >> magnitude & 7 | (words >> sign & 1) << 3 for magnitude, sign in shifts], dim=2)
        return parts.view(len(parts), -1, 4, 2, packed.block).transpose(3, 4).flatten(1)
    # Not from a list: a copy from the host would wait, and no capture of a CUDA graph survives it.
    places = _shift(torch.arange(32 // packed.bits, dtype=torch.int32, device=words.device), packed.bits)
    codes: Tensor = (words >> places[:, None]) & (2**packed.bits - 1)
    return codes.flatten(1)


def _from_e2m1(codes: Tensor) -> Tensor:
    """Return codes as float32, without a table: in a CUDA graph nothing can be copied from the host."""
    values = ((codes & 8) << 12 | (codes & 7) << 9).to(torch.int16).view(torch.float16)
    return values.float() * float(E2M1_UNIT.value)


def rows(token_ids: Tensor, packed: QuantizedLinear, *, dtype: torch.dtype) -> Tensor:
    """Return rows token_ids [T] of the weight, [T, K] in `dtype`. In torch: `widen` compiles for a number of rows."""
    words = packed.values.index_select(0, token_ids).view(len(token_ids), -1, 1, packed.block)
    codes = _codes(words, packed)
    if packed.is_float:
        is_e4m3 = packed.bits == 8
        wide = codes.to(torch.uint8).view(torch.float8_e4m3fn).float() if is_e4m3 else _from_e2m1(codes)
    else:
        wide = (codes - packed.zero).float()
    scales = packed.scales.index_select(1, token_ids // packed.scale_rows).T
    if scales.dtype == torch.int32:
        exponents = torch.stack([scales >> shift & 255 for shift in (0, 8, 16, 24)], dim=2).flatten(1)
        scales = (exponents << 23).view(torch.float32)
    grouped = wide.view(len(token_ids), scales.shape[1], -1) * scales[:, :, None]
    if packed.offsets is not None:
        grouped = grouped + packed.offsets.index_select(1, token_ids).T[:, :, None]
    wide_rows: Tensor = grouped.flatten(1)[:, : packed.num_inputs].to(dtype)
    return wide_rows
