# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Causal convolution of each channel over a row's sequence, and the raw inputs that slots keep of it.

y[i] = bias + Σ_tap weight[tap] · x[i - K + 1 + tap], then silu, or times C (LFM2). Sequence i of row b is in place
query_start_loc[b] + b · M + i of the convolved inputs, with M the most replayed tokens, because only data tell how many
there are. One program convolves one token's block of channels, whatever its neighbours: K reads (2 bytes), one write.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..arguments import RaggedBatch, StateBatch, StateView

# 512 channels over 4 warps: 4 a thread, an 8-byte load of each tap. Untuned.
BLOCK = 512


class Layout(NamedTuple):
    """Arguments that all kernels of a recurrent layer take."""

    conv: Tensor
    tail: Tensor  # conv again if there is none, and never read
    starts: Tensor
    sources: Tensor
    targets: Tensor
    num_replayed: Tensor
    num_drafts: Tensor
    checkpoint_loc: Tensor
    checkpoint_ends: Tensor
    checkpoint_slots: Tensor
    conv_stride: int
    tail_stride: int
    tail_row: int

    @property
    def num_rows(self) -> int:
        return len(self.sources)


def layout(view: StateView, ragged: RaggedBatch, states: StateBatch) -> tuple[Layout, int]:
    """Return the common arguments, and M."""
    tail = view.conv if view.tail is None else view.tail
    assert view.conv.stride(2) == tail.stride(2) == 1
    assert view.conv.stride(1) == view.conv.shape[2]
    places = Layout(
        view.conv, tail, ragged.query_start_loc, *states, view.conv.stride(0), tail.stride(0), tail.stride(1)
    )  # fmt: skip
    return places, 0 if view.tail is None else view.tail.shape[1]


@triton.jit
def _earlier(
    i, source, channels, inside, conv_ptr, tail_ptr, conv_stride, tail_stride, tail_row, num_channels,
    NUM_TAPS: tl.constexpr, MAX_REPLAYED: tl.constexpr,
):  # fmt: skip
    """Raw inputs of token `i` before the row's own ones: of the source's convolution or tail, or zeros."""
    is_kept = (i < 0) & (source >= 0)
    at = tl.maximum(source, 0).to(tl.int64)
    conv_ptrs = conv_ptr + at * conv_stride + tl.maximum(i + NUM_TAPS - 1, 0) * num_channels + channels
    x = tl.load(conv_ptrs, mask=inside & is_kept, other=0.0).to(tl.float32)
    if MAX_REPLAYED > 0:
        tail_ptrs = tail_ptr + at * tail_stride + tl.maximum(i, 0) * tail_row + channels
        x += tl.load(tail_ptrs, mask=inside & (i >= 0), other=0.0).to(tl.float32)
    return x


@triton.jit
def _own(x_ptr, token, x_stride, channels, inside, num_channels, IS_PRODUCT: tl.constexpr):
    """Raw inputs of a token of the batch; with IS_PRODUCT B · x of [B | C | x], rounded."""
    ptrs = x_ptr + token.to(tl.int64) * x_stride + channels
    x = tl.load(ptrs, mask=inside, other=0.0)
    if IS_PRODUCT:
        factor = tl.load(ptrs + 2 * num_channels, mask=inside, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) * factor).to(x_ptr.dtype.element_ty)
    return x.to(tl.float32)


@triton.jit
def _convolve(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_stride, y_stride, num_channels,
    conv_ptr, tail_ptr, starts_ptr, sources_ptr, targets_ptr, replayed_ptr, drafts_ptr, loc_ptr, ends_ptr, slots_ptr,
    conv_stride, tail_stride, tail_row, num_rows,
    NUM_TAPS: tl.constexpr, MAX_REPLAYED: tl.constexpr, IS_PRODUCT: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    rows = tl.arange(0, ROWS)
    firsts = tl.load(starts_ptr + rows, mask=rows < num_rows, other=0) + rows * MAX_REPLAYED
    row = tl.sum(((firsts <= place) & (rows < num_rows)).to(tl.int32), axis=0) - 1
    begin = tl.load(starts_ptr + row)
    num_replayed, source = tl.load(replayed_ptr + row), tl.load(sources_ptr + row)
    token = place - begin - row * MAX_REPLAYED  # in the row's sequence
    if token >= num_replayed + tl.load(starts_ptr + row + 1) - begin:
        return
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channels < num_channels
    y = tl.zeros((BLOCK,), tl.float32)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + channels, mask=inside, other=0.0)
    for tap in tl.static_range(NUM_TAPS):
        i = token - NUM_TAPS + 1 + tap
        is_own = i >= num_replayed
        x = _earlier(
            i, source, channels, inside & (i < num_replayed), conv_ptr, tail_ptr, conv_stride, tail_stride, tail_row,
            num_channels, NUM_TAPS, MAX_REPLAYED,
        )  # fmt: skip
        own = tl.maximum(begin + i - num_replayed, 0)
        x += _own(x_ptr, own, x_stride, channels, inside & is_own, num_channels, IS_PRODUCT)
        y += x * tl.load(weight_ptr + tap * num_channels + channels, mask=inside, other=0.0)
    to = place
    if IS_PRODUCT:
        to = tl.maximum(begin + token - num_replayed, 0)
        inside &= token >= num_replayed
        c_ptrs = x_ptr + to.to(tl.int64) * x_stride + num_channels + channels
        y *= tl.load(c_ptrs, mask=inside, other=0.0).to(tl.float32)
    else:
        y = y / (1.0 + tl.exp(-y))
    tl.store(y_ptr + to.to(tl.int64) * y_stride + channels, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _keep_inputs(
    x_ptr, gates_ptr, x_stride, gates_stride, num_channels, num_gates,
    conv_ptr, tail_ptr, starts_ptr, sources_ptr, targets_ptr, replayed_ptr, drafts_ptr, loc_ptr, ends_ptr, slots_ptr,
    conv_stride, tail_stride, tail_row, num_rows,
    NUM_TAPS: tl.constexpr, MAX_REPLAYED: tl.constexpr, IS_PRODUCT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channels < num_channels
    begin, num_replayed = tl.load(starts_ptr + row), tl.load(replayed_ptr + row)
    source, target = tl.load(sources_ptr + row), tl.load(targets_ptr + row)
    num_drafts = tl.load(drafts_ptr + row)
    num_certain = num_replayed + tl.load(starts_ptr + row + 1) - begin - num_drafts
    first, last = tl.load(loc_ptr + row), tl.load(loc_ptr + row + 1)
    dtype = conv_ptr.dtype.element_ty
    for kept in range(first, last + 1):  # checkpoints, then the target
        end = tl.load(ends_ptr + kept, mask=kept < last, other=0)
        end = tl.where(kept < last, end, num_certain)
        slot = tl.load(slots_ptr + kept, mask=kept < last, other=0)
        slot = tl.where(kept < last, slot, target)
        for tap in tl.static_range(NUM_TAPS - 1):
            i = end - NUM_TAPS + 1 + tap
            x = _earlier(
                i, source, channels, inside & (i < num_replayed), conv_ptr, tail_ptr, conv_stride, tail_stride,
                tail_row, num_channels, NUM_TAPS, MAX_REPLAYED,
            )  # fmt: skip
            own = tl.maximum(begin + i - num_replayed, 0)
            x += _own(x_ptr, own, x_stride, channels, inside & (i >= num_replayed), num_channels, IS_PRODUCT)
            to = conv_ptr + slot.to(tl.int64) * conv_stride + tap * num_channels + channels
            tl.store(to, x.to(dtype), mask=inside & (slot >= 0))
    if MAX_REPLAYED > 0:
        tail_ptr += target.to(tl.int64) * tail_stride
        for draft in range(num_drafts):
            token = begin + num_certain - num_replayed + draft
            x = _own(x_ptr, token, x_stride, channels, inside & (target >= 0), num_channels, IS_PRODUCT)
            tl.store(tail_ptr + draft * tail_row + channels, x.to(dtype), mask=inside & (target >= 0))
            is_gate = (channels < num_gates) & (target >= 0)
            if gates_ptr is not None:
                gates = tl.load(gates_ptr + token.to(tl.int64) * gates_stride + channels, mask=is_gate, other=0.0)
                tl.store(tail_ptr + draft * tail_row + num_channels + channels, gates.to(dtype), mask=is_gate)


def convolve(
    x: Tensor, gates: Tensor | None, weight: Tensor, bias: Tensor | None, view: StateView, ragged: RaggedBatch,
    states: StateBatch, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Keep raw inputs, and return silu(conv(x)) [T + B · M, C] in float32; or fill `out` [T, C] with LFM2's."""
    places, most_replayed = layout(view, ragged, states)
    num_taps, num_channels = weight.shape
    assert x.stride(1) == 1
    assert weight.is_contiguous()
    assert view.conv.shape[1:] == (num_taps - 1, num_channels)
    num_places = len(x) + places.num_rows * most_replayed
    y = torch.empty(num_places, num_channels, dtype=torch.float32, device=x.device) if out is None else out
    num_blocks = triton.cdiv(num_channels, BLOCK)
    options = {"NUM_TAPS": num_taps, "MAX_REPLAYED": most_replayed, "IS_PRODUCT": out is not None, "BLOCK": BLOCK}
    if places.num_rows == 0:
        return y
    _convolve[(num_places, num_blocks)](
        x, weight, bias, y, x.stride(0), y.stride(0), num_channels, *places, places.num_rows,
        ROWS=triton.next_power_of_2(places.num_rows), **options,
    )  # fmt: skip
    num_gates = 0 if gates is None else gates.shape[1]
    num_blocks = triton.cdiv(max(num_channels, num_gates), BLOCK)
    _keep_inputs[(places.num_rows, num_blocks)](
        x, gates, x.stride(0), 0 if gates is None else gates.stride(0), num_channels, num_gates, *places,
        places.num_rows, **options,
    )  # fmt: skip
    return y


def short_conv(
    bcx: Tensor, weight: Tensor, bias: Tensor | None, view: StateView, ragged: RaggedBatch, states: StateBatch
) -> Tensor:
    """Like ops.short_conv → a new contiguous [T, H]."""
    out = torch.empty(len(bcx), weight.shape[1], dtype=bcx.dtype, device=bcx.device)
    return convolve(bcx, None, weight, bias, view, ragged, states, out)
