"""Recurrent layers of the reference backend, token by token. Shapes are in ops.py.

Computes in float32, or in float64 if the input is float64. On the meta device results are shapes only.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import RaggedBatch, StateBatch, StateView

# (last K inputs of the convolution [K, C], gates, state before the token) → (state after the token, output)
Step = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _wide(x: Tensor) -> Tensor:
    return x.double() if x.dtype == torch.float64 else x.float()


class _Row(NamedTuple):
    """Row's sequence of raw inputs, and the slots that get a state: [(number of tokens before it, slot)]."""

    inputs: Tensor  # [tokens, C + num_gates]
    history: Tensor  # [K - 1, C]
    state: Tensor  # without numbers if the layer is a convolution alone
    num_replayed: int
    kept: list[tuple[int, int]]


def _scan(out: Tensor, raw: Tensor, step: Step, view: StateView, ragged: RaggedBatch, states: StateBatch) -> Tensor:
    """Fill out [T, …] with the outputs of each row's tokens, whose raw inputs are raw [T, C + num_gates]."""
    if raw.is_meta:
        return out
    for b, (start, end) in enumerate(pairwise(ragged.query_start_loc.tolist())):
        row = _row(b, raw[start:end], view, states)
        state, num_taps, num_channels = row.state, len(row.history) + 1, view.conv.shape[2]
        channels = torch.cat((row.history, row.inputs[:, :num_channels]))
        for token in range(len(row.inputs) + 1):
            for slot in (slot for num_tokens, slot in row.kept if num_tokens == token):
                view.conv[slot] = channels[token : token + num_taps - 1]
                if view.state is not None:
                    view.state[slot] = state
            if token < len(row.inputs):
                gates = _wide(row.inputs[token, num_channels:])
                state, output = step(_wide(channels[token : token + num_taps]), gates, state)
                if token >= row.num_replayed:
                    out[start + token - row.num_replayed] = output.to(out.dtype)
    return out


def _row(b: int, own: Tensor, view: StateView, states: StateBatch) -> _Row:
    """Collect row b, and write its drafts into its target's tail."""
    source, target, num_replayed, num_drafts = (int(array[b]) for array in states[:4])
    num_certain = num_replayed + len(own) - num_drafts
    first, last = states.checkpoint_loc[b : b + 2].tolist()
    ends, slots = (array[first:last].tolist() for array in states[5:])
    kept = [*zip(ends, slots, strict=True), *([(num_certain, target)] if target >= 0 else [])]
    inputs = own
    if num_replayed:
        assert view.tail is not None
        inputs = torch.cat((view.tail[source, :num_replayed], own))
    if num_drafts and target >= 0:
        assert view.tail is not None
        view.tail[target, :num_drafts] = inputs[num_certain:]
    history = torch.zeros_like(view.conv[0]) if source < 0 else view.conv[source]
    if view.state is None:
        return _Row(inputs, history, history[:0], num_replayed, kept)
    state = torch.zeros_like(view.state[0]) if source < 0 else view.state[source]
    return _Row(inputs, history, _wide(state), num_replayed, kept)


def _conv(window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve the last K inputs [K, C] of a token → [C]."""
    out = (window * weight).sum(dim=0)
    return out if bias is None else out + bias


def short_conv(
    bcx: Tensor, weight: Tensor, bias: Tensor | None, view: StateView, ragged: RaggedBatch, states: StateBatch
) -> Tensor:
    b, c, x = bcx.chunk(3, dim=-1)
    convolved = torch.zeros_like(_wide(x))

    def step(window: Tensor, gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return state, _conv(window, weight, bias)

    _scan(convolved, b * x, step, view, ragged, states)
    return (_wide(c) * convolved).to(bcx.dtype)


def gated_delta(
    qkv: Tensor, gates: Tensor, weight: Tensor, a_log: Tensor, dt_bias: Tensor, view: StateView, ragged: RaggedBatch,
    states: StateBatch, *, num_k_heads: int, head_k_dim: int, num_v_heads: int, head_v_dim: int,
    tiles_heads: bool = False,
) -> Tensor:  # fmt: skip
    assert gates.shape[1] == 2 * num_v_heads or (
        gates.shape[1] == num_v_heads * (1 + head_k_dim) and num_k_heads == num_v_heads
    )
    key_dim, group = num_k_heads * head_k_dim, num_v_heads // num_k_heads
    rates = a_log.exp()[:, None]

    def normed(x: Tensor) -> Tensor:
        x = x.view(num_k_heads, head_k_dim)
        x = x * torch.rsqrt(x.square().sum(dim=1, keepdim=True) + 1e-6)
        return x.repeat(group, 1) if tiles_heads else x.repeat_interleave(group, dim=0)

    def step(window: Tensor, gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        mixed = F.silu(_conv(window, weight, None))
        q, k = normed(mixed[:key_dim]) * head_k_dim**-0.5, normed(mixed[key_dim : 2 * key_dim])
        v = mixed[2 * key_dim :].view(num_v_heads, head_v_dim)
        b, a = gates[:num_v_heads], gates[num_v_heads:]
        decays = torch.exp(-rates * F.softplus(a + dt_bias).view(num_v_heads, -1))  # [Hv, 1] or [Hv, dk]
        state = state * decays[:, :, None]
        delta = (v - (state * k[:, :, None]).sum(dim=1)) * b.sigmoid()[:, None]
        state = state + k[:, :, None] * delta[:, None]
        return state, (state * q[:, :, None]).sum(dim=1)

    out = qkv.new_zeros(len(qkv), num_v_heads, head_v_dim)
    return _scan(out, torch.cat((qkv, gates), dim=1), step, view, ragged, states)


def mamba2(
    xbc: Tensor, dt: Tensor, weight: Tensor, bias: Tensor | None, a_log: Tensor, d: Tensor, dt_bias: Tensor,
    view: StateView, ragged: RaggedBatch, states: StateBatch, *, head_dim: int, num_groups: int, state_size: int,
    dt_limits: tuple[float, float] = (0.0, float("inf")),
) -> Tensor:  # fmt: skip
    num_heads = dt.shape[1]
    sizes = [num_heads * head_dim, num_groups * state_size, num_groups * state_size]

    def of_heads(x: Tensor) -> Tensor:
        return x.view(num_groups, state_size).repeat_interleave(num_heads // num_groups, dim=0)[:, :, None]

    def step(window: Tensor, gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        x, b, c = torch.split(F.silu(_conv(window, weight, bias)), sizes)
        x, dt = x.view(num_heads, head_dim), F.softplus(gates + dt_bias).clamp(*dt_limits)
        state = state * torch.exp(-a_log.exp() * dt)[:, None, None] + of_heads(b) * (dt[:, None] * x)[:, None]
        return state, (state * of_heads(c)).sum(dim=1) + d[:, None] * x

    out = xbc.new_zeros(len(xbc), num_heads, head_dim)
    return _scan(out, torch.cat((xbc, dt), dim=1), step, view, ragged, states)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, group_size: int, norm_before_gate: bool,
    is_sigmoid: bool = False,
) -> Tensor:  # fmt: skip
    wide, gated = _wide(x), (_wide(gate).sigmoid() if is_sigmoid else F.silu(_wide(gate)))
    groups = (wide if norm_before_gate else wide * gated).view(len(x), -1, group_size)
    groups = groups * torch.rsqrt(groups.square().mean(dim=-1, keepdim=True) + eps)
    normed = (groups * weight.to(wide.dtype).view(-1, group_size)).view_as(wide)
    return (normed * gated if norm_before_gate else normed).to(x.dtype)


def gate_mul(x: Tensor, gate: Tensor, kind: str) -> Tensor:
    wide = _wide(gate)
    if kind == "gelu_tanh":
        factor = F.gelu(wide, approximate="tanh")
    else:
        factor = F.silu(wide) if kind == "silu" else wide.sigmoid()
    return (_wide(x) * factor).to(x.dtype)
