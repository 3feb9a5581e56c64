"""Recurrent layers, gates and Gemma 3n's streams in native ops; the reference for what the library lacks."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from .. import altup
from .. import recurrence as reference
from ..arguments import RaggedBatch, StateBatch, StateView
from . import build
from .backend import gated

_MAX_TAPS = 8  # limit in recurrence.h
_NUM_STREAMS = 4  # of altup.cpp
_GATES = ("sigmoid", "silu", "gelu_tanh")  # by their numbers in gates.cpp


def short_conv(
    bcx: Tensor, weight: Tensor, bias: Tensor | None, view: StateView, ragged: RaggedBatch, states: StateBatch
) -> Tensor:
    run = _recurrence("short_conv", view, weight, bcx)
    if run is None:
        return reference.short_conv(bcx, weight, bias, view, ragged, states)
    num_taps, hidden = weight.shape
    out = bcx.new_empty(len(bcx), hidden)
    run(
        bcx=bcx, weight=weight, bias=bias, out=out, hidden=hidden, num_taps=num_taps, bcx_token=bcx.stride(0),
        **_places(view, ragged, states),
    )  # fmt: skip
    return out


def gated_delta(
    qkv: Tensor, gates: Tensor, weight: Tensor, a_log: Tensor, dt_bias: Tensor, view: StateView, ragged: RaggedBatch,
    states: StateBatch, *, num_k_heads: int, head_k_dim: int, num_v_heads: int, head_v_dim: int,
    tiles_heads: bool = False,
) -> Tensor:  # fmt: skip
    sizes: dict[str, Any] = {
        "num_k_heads": num_k_heads, "head_k_dim": head_k_dim, "num_v_heads": num_v_heads, "head_v_dim": head_v_dim,
        "tiles_heads": tiles_heads,
    }  # fmt: skip
    run = _recurrence("gated_delta", view, weight, qkv, gates)
    if run is None:
        return reference.gated_delta(qkv, gates, weight, a_log, dt_bias, view, ragged, states, **sizes)
    out = qkv.new_empty(len(qkv), num_v_heads, head_v_dim)
    run(
        qkv=qkv, gates=gates, weight=weight, a_log=a_log, dt_bias=dt_bias, out=out, num_taps=len(weight),
        a_dim=gates.shape[1] // num_v_heads - 1, qkv_token=qkv.stride(0), gates_token=gates.stride(0), **sizes,
        **_places(view, ragged, states),
    )  # fmt: skip
    return out


def mamba2(
    xbc: Tensor, dt: Tensor, weight: Tensor, bias: Tensor | None, a_log: Tensor, d: Tensor, dt_bias: Tensor,
    view: StateView, ragged: RaggedBatch, states: StateBatch, *, head_dim: int, num_groups: int, state_size: int,
    dt_limits: tuple[float, float] = (0.0, float("inf")),
) -> Tensor:  # fmt: skip
    run = _recurrence("mamba2", view, weight, xbc, dt)
    if run is None:
        return reference.mamba2(
            xbc, dt, weight, bias, a_log, d, dt_bias, view, ragged, states, head_dim=head_dim, num_groups=num_groups,
            state_size=state_size, dt_limits=dt_limits,
        )  # fmt: skip
    num_heads = dt.shape[1]
    out = xbc.new_empty(len(xbc), num_heads, head_dim)
    run(
        xbc=xbc, dt=dt, weight=weight, bias=bias, a_log=a_log, d=d, dt_bias=dt_bias, out=out, num_taps=len(weight),
        num_heads=num_heads, head_dim=head_dim, num_groups=num_groups, state_size=state_size, xbc_token=xbc.stride(0),
        dt_token=dt.stride(0), dt_min=dt_limits[0], dt_max=dt_limits[1], **_places(view, ragged, states),
    )  # fmt: skip
    return out


def _recurrence(name: str, view: StateView, weight: Tensor, *inputs: Tensor) -> Callable[..., None] | None:
    """Return the op if the library has one for these raw inputs and convolutions, else None."""
    dtype = view.conv.dtype
    if len(weight) > _MAX_TAPS or any(x.dtype != dtype or x.stride(1) != 1 for x in inputs):
        return None
    return build.op(name, build.DTYPES.get(dtype))


def _places(view: StateView, ragged: RaggedBatch, states: StateBatch) -> Mapping[str, Any]:
    """Return the fields that all recurrent ops have."""
    assert all(part is None or part[:1].is_contiguous() for part in view)
    fields = {
        "conv": view.conv, "conv_slot": view.conv.stride(0),
        "tail": view.tail, "tail_slot": 0 if view.tail is None else view.tail.stride(0),
        "query_start_loc": ragged.query_start_loc, "num_rows": len(states.sources), **states._asdict(),
    }  # fmt: skip
    if view.state is not None:
        fields |= {"state": view.state, "state_slot": view.state.stride(0)}
    return fields


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, group_size: int, norm_before_gate: bool,
    is_sigmoid: bool = False,
) -> Tensor:  # fmt: skip
    run = build.op("gated_rms_norm", build.NORM_DTYPES.get((x.dtype, weight.dtype)))
    if run is None or gate.dtype != x.dtype or gate.stride(1) != 1:
        return reference.gated_rms_norm(
            x, gate, weight, eps=eps, group_size=group_size, norm_before_gate=norm_before_gate, is_sigmoid=is_sigmoid
        )
    x = x.contiguous()
    out = x.new_empty(*x.shape)
    run(
        x=x, gate=gate, weight=weight, out=out, num_rows=len(x), width=x.shape[1], group_size=group_size,
        num_weights=len(weight), gate_row=gate.stride(0), norm_before_gate=norm_before_gate, is_sigmoid=is_sigmoid,
        eps=eps,
    )  # fmt: skip
    return out


def gate_mul(x: Tensor, gate: Tensor, kind: str) -> Tensor:
    run = build.op("gate_mul", build.DTYPES.get(x.dtype))
    is_dense = gate.stride(gate.ndim - 1) == 1 and (gate.ndim == 2 or gate.stride(1) == gate.shape[2])
    if run is None or gate.dtype != x.dtype or not is_dense:
        return reference.gate_mul(x, gate, kind)
    x = x.contiguous()
    out = x.new_empty(*x.shape)
    width = out.stride(0)  # x, if it is a single row, may have another
    run(x=x, gate=gate, out=out, num_rows=len(x), width=width, gate_row=gate.stride(0), kind=_GATES.index(kind))
    return out


def sparse_gelu_mul(gate_up: Tensor, *, num_deviations: float) -> Tensor:
    fallback = partial(altup.sparse_gelu_mul, num_deviations=num_deviations)
    return gated(gate_up, fallback, kind=3, limit=num_deviations)


def match_rms(x: Tensor, like: Tensor) -> Tensor:
    run = build.op("match_rms", build.DTYPES.get(x.dtype))
    if run is None:
        return altup.match_rms(x, like)
    out = x.new_empty(*x.shape)
    run(x=x, like=like, out=out, num_rows=len(x), width=x.shape[1])
    return out


def altup_predict(streams: Sequence[Tensor], added: Tensor | None, coefs: Tensor) -> list[Tensor]:
    run = build.op("altup_predict", build.DTYPES.get(coefs.dtype))
    if run is None or len(streams) != _NUM_STREAMS:
        return altup.altup_predict(streams, added, coefs)
    return _run(run, streams, added=added, coefs=coefs)


def altup_correct(predictions: Sequence[Tensor], activated: Tensor, coefs: Tensor) -> list[Tensor]:
    run = build.op("altup_correct", build.DTYPES.get(coefs.dtype))
    if run is None or len(predictions) != _NUM_STREAMS:
        return altup.altup_correct(predictions, activated, coefs)
    return _run(run, predictions, activated=activated, coefs=coefs)


def _run(run: Any, streams: Sequence[Tensor], **others: Tensor | None) -> list[Tensor]:
    outs = [stream.new_empty(*stream.shape) for stream in streams]
    numbered = {f"x{b}": stream for b, stream in enumerate(streams)} | {f"out{b}": out for b, out in enumerate(outs)}
    run(**numbered, **others, num_rows=len(streams[0]), width=streams[0].shape[1])
    return outs
