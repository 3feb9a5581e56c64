# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Tiles of products with packed weights of 4 or 8 bits: words of 32 bits become float16 without a conversion.

A step takes 32 / BITS blocks of BLOCK_K inputs; word j of an output has input j of every block. So a block is an
operand as it is loaded, and its inputs are neighbours in x:

    bits of word j      0 ..               16 ..
    4 bits, block       0  2  4  6         1  3  5  7
    8 bits, block       0     2            1     3
    e2m1, block         6 4 2 0 magnitudes  7 5 3 1
                        2 4 6 0 signs       3 5 7 1

One shift and one mask give two blocks as halves of a word. An unsigned code u in the low bits of a float16 is the
subnormal number u · 2^-24, which tensor cores multiply exactly; one that begins at bit 4 is 16 times larger, and x is
divided by 16 there. e4m3 becomes float16 by its bits (Micikevicius et al. 2022): w · 2^-8; x is scaled by a power of
two into float16's range, so x in bfloat16 keeps all its bits but for values below 2^-25 of the row's largest.

Outputs are the rows of the dot: the weights are the operand that stays in registers. Per weight: 0.2 shifts, 0.5 masks,
0.5 byte permutations (a pair of neighbours is in two words), 0.25 of a tensor core's instruction at most.
"""

import triton
import triton.language as tl
from triton.language.target_info import is_hip

from ..dependent import wait_for_previous
from ..rope_and_cache import to_e4m3

# What a product of float16 operands lacks. Applied last, because with scales it might leave float32.
INTEGER_UNIT = tl.constexpr(2.0**24)
E4M3_UNIT = tl.constexpr(2.0**8)
E2M1_UNIT = tl.constexpr(2.0**14)


@triton.jit
def _pair(words, INDEX: tl.constexpr, BITS: tl.constexpr, IS_FLOAT: tl.constexpr):
    """Return blocks 2 · INDEX and 2 · INDEX + 1 as the halves of words."""
    if IS_FLOAT and BITS == 4:
        # e2m1 (OCP Microscaling Formats 1.0): w · 2^-14. Sign to 15 and 31, magnitude to 9 .. 11 and 25 .. 27; sums of
        # the products' other bits stay between these. The two blocks are one operand, whose neighbours they have in
        # turn: so a word's halves are neighbours, as tensor cores take them, and no byte moves. In all 9 instructions
        # for 8 weights.
        if INDEX == 0:
            shifted = words
        elif INDEX == 1:
            shifted = words << 3
        elif INDEX == 2:
            shifted = (words & 0x20382038) * (64 + 4)
        else:
            shifted = (words & 0x40074007) * (512 + 2)
        return shifted & -0x71FF7200
    if IS_FLOAT:
        # The codes at bits 0 and 16, or 8 and 24: sign to 15 and 31, magnitude to 7 .. 13 and 23 .. 29.
        if INDEX == 0:
            return ((words << 8) & -0x7FFF8000) | ((words << 7) & 0x3F803F80)
        return (words & -0x7FFF8000) | ((words >> 1) & 0x3F803F80)
    if BITS == 8:
        return (words >> (8 * INDEX)) & 0x00FF00FF
    if INDEX >= 2:
        words = words >> 8
    return words & (0x000F000F << (4 * (INDEX % 2)))


@triton.jit
def code_of(words, block, BITS: tl.constexpr, IS_FLOAT: tl.constexpr):
    """Return the codes of a block."""
    half = block % 2 * 16
    if IS_FLOAT and BITS == 4:
        magnitudes = (words >> (9 - block // 2 * 3 + half)) & 0x7
        code = magnitudes | ((words >> (12 + (block // 2 + 3) % 4 + half)) & 0x1) << 3
    else:
        code = (words >> (block // 2 * BITS + half)) & ((1 << BITS) - 1)
    return code


@triton.jit
def _wide(words, BLOCK: tl.constexpr, BITS: tl.constexpr, IS_FLOAT: tl.constexpr):
    """Return the codes of a block as float32: u, or w without its unit."""
    code = code_of(words, BLOCK, BITS, IS_FLOAT)
    return from_bits(code, BITS) if IS_FLOAT else code.to(tl.float32)


@triton.jit
def from_bits(code, BITS: tl.constexpr):
    """Return codes of e4m3 or e2m1 as float32, without their unit."""
    bits = ((code & 0x8) << 12) | ((code & 0x7) << 9) if BITS == 4 else ((code & 0x80) << 8) | ((code & 0x7F) << 7)
    return bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def round_groups(x, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Round x [BLOCK] float32 → (bytes of e4m3 [groups, GROUP], scales [groups]); GROUP 0: all in one group.

    A scale turns its group's largest value into 448. A group of zeros stays zero; one that is not finite has scale NaN.
    """
    SIZE: tl.constexpr = GROUP if GROUP else BLOCK
    grouped = tl.reshape(x, [BLOCK // SIZE, SIZE])
    largest = tl.max(tl.abs(grouped), axis=1)
    scales = tl.maximum(largest * (1.0 / 448.0), 1e-30) + tl.sum(grouped * 0.0, axis=1)
    return to_e4m3(tl.div_rn(grouped, scales[:, None])), scales


@triton.jit
def load_scales(ptrs, group, STRIDE: tl.constexpr):
    """Load a group's scales as float32; int32 has the exponents of four groups."""
    if ptrs.dtype.scalar.element_ty == tl.int32:
        wide = power_of_two(tl.load(ptrs + group // 4 * STRIDE) >> (group % 4 * 8), 0)
    else:
        wide = tl.load(ptrs + group * STRIDE).to(tl.float32)
    return wide


@triton.jit
def power_of_two(words, INDEX: tl.constexpr):
    """Return the powers of two whose exponents of e8m0 are byte INDEX of the words; 0 is 0 instead of 2^-127."""
    bits = words << (23 - 8 * INDEX) if INDEX < 3 else words >> 1
    return (bits & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def inputs_of_dot(BLOCK_K: tl.constexpr, BITS: tl.constexpr, IS_FLOAT: tl.constexpr):
    """Return the first dot's inputs within a step."""
    return tl.arange(0, 2 * BLOCK_K if IS_FLOAT and BITS == 4 else BLOCK_K)


@triton.jit
def blocks(words, INDEX: tl.constexpr, BITS: tl.constexpr, IS_FLOAT: tl.constexpr, IS_WIDE: tl.constexpr):
    """Return blocks 2 · INDEX and 2 · INDEX + 1 of a step, each in the shape of `words`: float16, or float32 if wide.

    float16 lacks the factor of `unit`; integers of 4 bits and odd INDEX are 16 times larger, as `prepare_rows` knows.
    """
    if IS_WIDE:
        low, high = _wide(words, 2 * INDEX, BITS, IS_FLOAT), _wide(words, 2 * INDEX + 1, BITS, IS_FLOAT)
    else:  # not code behind a return: Triton 3.6 would compile it, and finds another type
        pair = _pair(words, INDEX, BITS, IS_FLOAT)
        low = pair.to(tl.uint16).to(tl.float16, bitcast=True)
        high = (pair >> 16).to(tl.uint16).to(tl.float16, bitcast=True)
    return low, high


@triton.jit
def multiply_steps(
    out, x_ptrs, w_ptrs, scale_ptrs, first_step, end_step, SCALE_STRIDE: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_K: tl.constexpr, BITS: tl.constexpr, IS_FLOAT: tl.constexpr, IS_WIDE: tl.constexpr,
):  # fmt: skip
    """Return out [N, M] + Σ w x over the steps, in units; with GROUP, w = scale · code, without, w = code.

    x_ptrs [inputs of a dot, M] and w_ptrs [N, BLOCK_K] point at step 0, scale_ptrs [N] at group 0.
    """
    IS_PAIRED: tl.constexpr = IS_FLOAT and BITS == 4
    HAS_EXPONENTS: tl.constexpr = scale_ptrs.dtype.scalar.element_ty == tl.int32  # of the step's four groups
    STEP: tl.constexpr = 32 // BITS * BLOCK_K
    DOT_K: tl.constexpr = 2 * BLOCK_K if IS_PAIRED else BLOCK_K
    NUM_DOTS: tl.constexpr = STEP // DOT_K
    PER_GROUP: tl.constexpr = GROUP // DOT_K if GROUP else NUM_DOTS
    for step in range(first_step, end_step):
        words = tl.load(w_ptrs + step * BLOCK_K)
        low, high = blocks(words, 0, BITS, IS_FLOAT, IS_WIDE)
        dots = out
        if HAS_EXPONENTS:
            exponents = tl.load(scale_ptrs + step * SCALE_STRIDE)
        for dot in tl.static_range(NUM_DOTS):
            if IS_PAIRED:
                low, high = blocks(words, dot, BITS, IS_FLOAT, IS_WIDE)
                weights = tl.interleave(low, high)
            elif dot % 2 == 0:
                low, high = blocks(words, dot // 2, BITS, IS_FLOAT, IS_WIDE)
                weights = low
            else:
                weights = high
            x = tl.load(x_ptrs + step * STEP + dot * DOT_K)
            if GROUP and dot % PER_GROUP == 0:
                if HAS_EXPONENTS:
                    scale = power_of_two(exponents, dot // PER_GROUP)
                else:
                    group = step * (NUM_DOTS // PER_GROUP) + dot // PER_GROUP
                    scale = load_scales(scale_ptrs, group, SCALE_STRIDE)
                dots = tl.zeros_like(out)
            dots = tl.dot(weights, x, dots, input_precision="ieee")
            if GROUP and dot % PER_GROUP == PER_GROUP - 1:
                out += dots * scale[:, None]
        if not GROUP:
            out = dots
    return out


@triton.jit
def add_offsets(
    out, offset_ptrs, sum_ptrs, first_group, end_group, factor, OFFSET_STRIDE: tl.constexpr, SUM_STRIDE,
    IS_WIDE: tl.constexpr,
):  # fmt: skip
    """Return out [N, M] + factor · Σ offset · (sum of the group's x), in the order of the groups.

    A product of its own behind the steps: within them it would be an instruction for each group and element of out.
    """
    BLOCK_G: tl.constexpr = 16
    groups = tl.arange(0, BLOCK_G)
    for start in range(first_group, end_group, BLOCK_G):
        inside = start + groups < end_group
        offset_mask, sum_mask = inside[None, :], inside[:, None]
        offsets = tl.load(offset_ptrs[:, None] + (start + groups)[None, :] * OFFSET_STRIDE, mask=offset_mask, other=0.0)
        sums = tl.load(sum_ptrs[None, :] + (start + groups)[:, None] * SUM_STRIDE, mask=sum_mask, other=0.0)
        precision: tl.constexpr = "ieee" if IS_WIDE or is_hip() else "tf32x3"  # AMD's compiler does not know tf32x3
        out = tl.dot(offsets.to(tl.float32) * factor, sums, out, input_precision=precision)
    return out


@triton.jit
def unit(BITS: tl.constexpr, IS_FLOAT: tl.constexpr, IS_WIDE: tl.constexpr):
    """Return the factor that products of `blocks` lack."""
    if IS_FLOAT:
        return E2M1_UNIT if BITS == 4 else E4M3_UNIT
    return 1.0 if IS_WIDE else INTEGER_UNIT


@triton.jit(do_not_specialize=["num_rows"])
def prepare_rows(
    x_ptr, y_ptr, sums_ptr, factors_ptr, num_rows, x_stride, NUM_K: tl.constexpr, PADDED_K: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_K: tl.constexpr, BITS: tl.constexpr, IS_FLOAT: tl.constexpr, IS_WIDE: tl.constexpr,
    ROUNDS: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write a row of y [M, PADDED_K], the row's factor, and sums [groups or 1, M] of y in units. Rows of padding: 0.

    x = y · factor, a power of two. With ROUNDS y is x rounded to int8, and the factor is the scale (W8A8); for weights
    in e4m3 x is rounded to e4m3 first, with a scale for each group of the weights.
    """
    wait_for_previous(DEPENDENT)
    row, ks = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + ks, mask=(ks < NUM_K) & (row < num_rows), other=0.0).to(tl.float32)
    if ROUNDS and IS_FLOAT:
        values, scales = round_groups(x, GROUP, BLOCK)
        x = tl.reshape(from_bits(values.to(tl.int32), 8) * E4M3_UNIT * scales[:, None], [BLOCK])
    largest = tl.max(tl.abs(x), axis=0)
    factor = 1.0
    if ROUNDS and not IS_FLOAT:
        factor = tl.maximum(largest / 127.0, 1e-30)
        x = (tl.div_rn(x, factor) + 12582912.0) - 12582912.0  # to nearest, ties to even: float32 has no more bits
    elif not IS_WIDE:
        # The largest becomes 2^14 to 2^15. NaN and infinity stay NaN and infinity; a row of zeros takes 2^-114.
        exponent = tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) & 0xFF, 27)
        factor = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
        x = x * ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    tl.store(factors_ptr + row, factor)
    y = x.to(y_ptr.dtype.element_ty)
    UNIT: tl.constexpr = 1.0 if IS_WIDE or IS_FLOAT else 1.0 / 16777216.0  # floats need no sums
    sums = y.to(tl.float32) * UNIT
    if GROUP:
        groups = tl.arange(0, BLOCK // GROUP)
        sums = tl.sum(tl.reshape(sums, [BLOCK // GROUP, GROUP]), axis=1)
        tl.store(sums_ptr + groups * tl.num_programs(0) + row, sums, mask=groups < PADDED_K // GROUP)
    else:
        tl.store(sums_ptr + row, tl.sum(sums, axis=0))
    if BITS == 4 and not IS_WIDE and not IS_FLOAT:
        y = tl.where(ks // (2 * BLOCK_K) % 2 == 1, x / 16.0, x).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * PADDED_K + ks, y, mask=ks < PADDED_K)
