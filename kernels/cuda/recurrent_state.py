# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Gated delta rules (Yang et al. 2024; Kimi Team 2025) and Mamba-2 (Dao & Gu 2024), token by token, as in ops.py.

One program takes a row of the batch, a head and a block of columns of its state, which stays in registers for all
tokens: no program depends on another, and a row's bits neither on its neighbours nor on how its tokens were cut into
steps. A token is 4 operations for an element of the state (Mamba-2: 3) and reads its keys, queries and values.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..arguments import RaggedBatch, StateBatch, StateView
from .short_convolution import convolve, layout

BLOCK_COLUMNS = 32  # with 128 rows 32 registers of a thread hold its share of the state. Untuned


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _gate(i, gate, source, begin, num_replayed, gates_ptr, tail_ptr, gates_stride, tail_stride, tail_row, num_channels,
          MAX_REPLAYED: tl.constexpr):  # fmt: skip
    """Gate of token `i` of the sequence."""
    token = tl.maximum(begin + i - num_replayed, 0).to(tl.int64)
    x = tl.load(gates_ptr + token * gates_stride + gate, mask=i >= num_replayed, other=0.0).to(tl.float32)
    if MAX_REPLAYED > 0:
        ptr = tail_ptr + tl.maximum(source, 0).to(tl.int64) * tail_stride + i * tail_row + num_channels + gate
        x += tl.load(ptr, mask=i < num_replayed, other=0.0).to(tl.float32)
    return x


@triton.jit
def _run_state(
    x_ptr, gates_ptr, a_log_ptr, d_ptr, dt_bias_ptr, out_ptr, state_ptr, x_stride, gates_stride, state_stride,
    key_channel, query_channel, value_channel, num_channels, scale, dt_min, dt_max,
    conv_ptr, tail_ptr, starts_ptr, sources_ptr, targets_ptr, replayed_ptr, drafts_ptr, loc_ptr, ends_ptr, slots_ptr,
    conv_stride, tail_stride, tail_row,
    NUM_HEADS: tl.constexpr, NUM_GROUPS: tl.constexpr, NUM_ROWS: tl.constexpr, NUM_COLUMNS: tl.constexpr,
    TILES_HEADS: tl.constexpr, IS_DELTA: tl.constexpr, BY_CHANNEL: tl.constexpr, MAX_REPLAYED: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0) // NUM_HEADS, tl.program_id(0) % NUM_HEADS
    group = head % NUM_GROUPS if TILES_HEADS else head // (NUM_HEADS // NUM_GROUPS)
    r, c = tl.arange(0, BLOCK_R), tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    in_r, in_c = r < NUM_ROWS, c < NUM_COLUMNS
    begin, num_replayed = tl.load(starts_ptr + row), tl.load(replayed_ptr + row)
    source, target = tl.load(sources_ptr + row), tl.load(targets_ptr + row)
    length = num_replayed + tl.load(starts_ptr + row + 1) - begin
    num_certain = length - tl.load(drafts_ptr + row)
    first, last = tl.load(loc_ptr + row), tl.load(loc_ptr + row + 1)
    rate = tl.exp(tl.load(a_log_ptr + head))
    # A gate for each row of the state is a vector here. Rows that pad it read the last one's, and are zeros.
    dt_gate = head * NUM_ROWS + tl.minimum(r, NUM_ROWS - 1) if BY_CHANNEL else head
    dt_bias = tl.load(dt_bias_ptr + dt_gate)

    state_ptrs = state_ptr + (head * NUM_ROWS + r[:, None]) * NUM_COLUMNS + c[None, :]
    inside = in_r[:, None] & in_c[None, :]
    source_ptrs = state_ptrs + tl.maximum(source, 0).to(tl.int64) * state_stride
    state = tl.load(source_ptrs, mask=inside & (source >= 0), other=0.0)
    x_ptr += (begin + row * MAX_REPLAYED).to(tl.int64) * x_stride
    at = 0
    for kept in range(first, last + 2):  # up to each checkpoint, then to the target's tokens, then to the end
        stop = tl.load(ends_ptr + kept, mask=kept < last, other=0)
        stop = tl.where(kept < last, stop, tl.where(kept == last, num_certain, length))
        slot = tl.load(slots_ptr + kept, mask=kept < last, other=0)
        slot = tl.where(kept < last, slot, tl.where(kept == last, target, -1))
        for after in range(stop - at):
            i = at + after  # Triton 3.6 and 3.7 lose a variable that is the bound of an inner loop and nothing else
            key = tl.load(x_ptr + key_channel + group * NUM_ROWS + r, mask=in_r, other=0.0)
            query = tl.load(x_ptr + query_channel + group * NUM_ROWS + r, mask=in_r, other=0.0)
            value = tl.load(x_ptr + value_channel + head * NUM_COLUMNS + c, mask=in_c, other=0.0)
            if IS_DELTA:
                key *= tl.math.rsqrt(tl.sum(key * key, axis=0) + 1e-6)
                query *= tl.math.rsqrt(tl.sum(query * query, axis=0) + 1e-6) * scale
                beta = _gate(i, head, source, begin, num_replayed, gates_ptr, tail_ptr, gates_stride, tail_stride,
                             tail_row, num_channels, MAX_REPLAYED)  # fmt: skip
                dt = _gate(i, NUM_HEADS + dt_gate, source, begin, num_replayed, gates_ptr, tail_ptr, gates_stride,
                           tail_stride, tail_row, num_channels, MAX_REPLAYED)  # fmt: skip
                decay = tl.exp(-rate * _softplus(dt + dt_bias))
                state *= decay[:, None] if BY_CHANNEL else decay
                recalled = tl.sum(state * key[:, None], axis=0)
                state += key[:, None] * ((value - recalled) / (1.0 + tl.exp(-beta)))[None, :]
                y = tl.sum(state * query[:, None], axis=0)
            else:
                dt = _gate(i, head, source, begin, num_replayed, gates_ptr, tail_ptr, gates_stride, tail_stride,
                           tail_row, num_channels, MAX_REPLAYED)  # fmt: skip
                dt = tl.minimum(tl.maximum(_softplus(dt + dt_bias), dt_min), dt_max)
                state = state * tl.exp(-rate * dt) + key[:, None] * (dt * value)[None, :]
                y = tl.sum(state * query[:, None], axis=0) + tl.load(d_ptr + head) * value
            token = tl.maximum(begin + i - num_replayed, 0).to(tl.int64)
            out_ptrs = out_ptr + (token * NUM_HEADS + head) * NUM_COLUMNS + c
            tl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=in_c & (i >= num_replayed))
            x_ptr += x_stride
        tl.store(state_ptrs + slot.to(tl.int64) * state_stride, state, mask=inside & (slot >= 0))
        at = tl.maximum(at, stop)


def _run(
    x: Tensor, gates: Tensor, a_log: Tensor, d: Tensor | None, dt_bias: Tensor, out: Tensor, view: StateView,
    ragged: RaggedBatch, states: StateBatch, *, num_groups: int, key_channel: int, query_channel: int,
    value_channel: int, scale: float = 0.0, dt_limits: tuple[float, float] = (0.0, 0.0), tiles_heads: bool = False,
) -> Tensor:  # fmt: skip
    """Fill out [T, heads, columns] from the convolved x [T + B · M, C]. `d` None: the delta rule."""
    assert view.state is not None
    assert gates.stride(1) == 1
    places, most_replayed = layout(view, ragged, states)
    num_heads, num_rows, num_columns = view.state.shape[1:]
    assert out.shape[1:] == (num_heads, num_columns)
    assert view.state[0].is_contiguous()
    block = min(BLOCK_COLUMNS, triton.next_power_of_2(num_columns))
    _run_state[(places.num_rows * num_heads, triton.cdiv(num_columns, block))](
        x, gates, a_log, d, dt_bias, out, view.state, x.stride(0), gates.stride(0), view.state.stride(0),
        key_channel, query_channel, value_channel, x.shape[1], scale, *dt_limits, *places,
        NUM_HEADS=num_heads,
        NUM_GROUPS=num_groups,
        NUM_ROWS=num_rows,
        NUM_COLUMNS=num_columns,
        TILES_HEADS=tiles_heads,
        IS_DELTA=d is None,
        BY_CHANNEL=d is None and gates.shape[1] > 2 * num_heads,
        MAX_REPLAYED=most_replayed,
        BLOCK_R=triton.next_power_of_2(num_rows),
        BLOCK_C=block,
    )  # fmt: skip
    return out


def gated_delta(
    qkv: Tensor, gates: Tensor, weight: Tensor, a_log: Tensor, dt_bias: Tensor, view: StateView, ragged: RaggedBatch,
    states: StateBatch, *, num_k_heads: int, head_k_dim: int, num_v_heads: int, head_v_dim: int,
    tiles_heads: bool = False,
) -> Tensor:  # fmt: skip
    """Like ops.gated_delta → a new contiguous [T, Hv, dv]."""
    x = convolve(qkv, gates, weight, None, view, ragged, states)
    out = torch.empty(len(qkv), num_v_heads, head_v_dim, dtype=qkv.dtype, device=qkv.device)
    key_dim = num_k_heads * head_k_dim
    return _run(
        x, gates, a_log, None, dt_bias, out, view, ragged, states, num_groups=num_k_heads, key_channel=key_dim,
        query_channel=0, value_channel=2 * key_dim, scale=head_k_dim**-0.5, tiles_heads=tiles_heads,
    )  # fmt: skip


def mamba2(
    xbc: Tensor, dt: Tensor, weight: Tensor, bias: Tensor | None, a_log: Tensor, d: Tensor, dt_bias: Tensor,
    view: StateView, ragged: RaggedBatch, states: StateBatch, *, head_dim: int, num_groups: int, state_size: int,
    dt_limits: tuple[float, float] = (0.0, float("inf")),
) -> Tensor:  # fmt: skip
    """Like ops.mamba2 → a new contiguous [T, heads, P]."""
    x = convolve(xbc, dt, weight, bias, view, ragged, states)
    out = torch.empty(len(xbc), dt.shape[1], head_dim, dtype=xbc.dtype, device=xbc.device)
    width = out.shape[1] * head_dim
    return _run(
        x, dt, a_log, d, dt_bias, out, view, ragged, states, num_groups=num_groups, key_channel=width,
        query_channel=width + num_groups * state_size, value_channel=0, dt_limits=dt_limits,
    )  # fmt: skip
