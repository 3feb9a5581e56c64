"""Ops of Gemma 3n on the CPU: the native library, or the reference without it. Shapes are in ops.py."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .. import altup as reference
from . import build

NUM_STREAMS = 4  # of the library's ops


def sparse_gelu_mul(gate_up: Tensor, *, num_deviations: float) -> Tensor:
    run = build.op("gated", build.DTYPES.get(gate_up.dtype))
    if run is None or not gate_up.is_contiguous():
        return reference.sparse_gelu_mul(gate_up, num_deviations=num_deviations)
    num_tokens, inner = len(gate_up), gate_up.shape[-1] // 2
    out = gate_up.new_empty(num_tokens, inner)
    run(gate_up=gate_up, out=out, num_tokens=num_tokens, inner=inner, kind=3, limit=num_deviations)
    return out


def tanh(x: Tensor) -> Tensor:
    run = build.op("activation", build.DTYPES.get(x.dtype))
    if run is None or not x.is_contiguous():
        return reference.tanh(x)
    out = x.new_empty(*x.shape)
    run(x=x, out=out, num_rows=len(x), width=x.shape[1], kind=4)
    return out


def match_rms(x: Tensor, like: Tensor) -> Tensor:
    run = build.op("match_rms", build.DTYPES.get(x.dtype))
    if run is None:
        return reference.match_rms(x, like)
    out = x.new_empty(*x.shape)
    run(x=x, like=like, out=out, num_rows=len(x), width=x.shape[1])
    return out


def altup_predict(streams: Sequence[Tensor], added: Tensor | None, coefs: Tensor) -> list[Tensor]:
    run = build.op("altup_predict", build.DTYPES.get(coefs.dtype))
    if run is None or len(streams) != NUM_STREAMS:
        return reference.altup_predict(streams, added, coefs)
    return _run(run, streams, added=added, coefs=coefs)


def altup_correct(predictions: Sequence[Tensor], activated: Tensor, coefs: Tensor) -> list[Tensor]:
    run = build.op("altup_correct", build.DTYPES.get(coefs.dtype))
    if run is None or len(predictions) != NUM_STREAMS:
        return reference.altup_correct(predictions, activated, coefs)
    return _run(run, predictions, activated=activated, coefs=coefs)


def _run(run: Any, streams: Sequence[Tensor], **others: Tensor | None) -> list[Tensor]:
    outs = [stream.new_empty(*stream.shape) for stream in streams]
    numbered = {f"x{b}": stream for b, stream in enumerate(streams)} | {f"out{b}": out for b, out in enumerate(outs)}
    run(**numbered, **others, num_rows=len(streams[0]), width=streams[0].shape[1])
    return outs
