"""Ops of Gemma 3n on the CPU, native and in torch, against the reference in float64, and to the bit in any batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from splitfuse.kernels import ops
from splitfuse.kernels.cpu import build

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
NUM_ROWS, WIDTH = 9, 84  # not a multiple of a vector


def _streams(op: Callable[..., list[Tensor]], *inputs: Tensor, has_added: bool = True) -> Tensor:
    streams, other, coefs = list(inputs[0].unbind(1)), inputs[1], inputs[2]
    return torch.stack(op([s.contiguous() for s in streams], other if has_added else None, coefs), dim=1)


OPS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "tanh": (lambda x: ops.activation(x, "tanh"), [(WIDTH,)]),
    "sparse_gelu_mul": (lambda x: ops.sparse_gelu_mul(x, num_deviations=0.6), [(2 * WIDTH,)]),
    "match_rms": (ops.match_rms, [(WIDTH,), (WIDTH,)]),
    "altup_predict": (lambda *x: _streams(ops.altup_predict, *x), [(4, WIDTH), (WIDTH,), (16,)]),
    "altup_predict first": (lambda *x: _streams(ops.altup_predict, *x, has_added=False), [(4, WIDTH), (WIDTH,), (16,)]),
    "altup_correct": (lambda *x: _streams(ops.altup_correct, *x), [(4, WIDTH), (WIDTH,), (4,)]),
}


@pytest.mark.parametrize("library", ["native", "torch"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", OPS)
def test_ops(name: str, dtype: torch.dtype, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "torch":
        monkeypatch.setattr(build, "library", lambda: None)
    elif build.library() is None:
        pytest.skip("needs a C++ compiler for the native CPU library")
    op, shapes = OPS[name]
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(NUM_ROWS, *shape, generator=generator).to(dtype) for shape in shapes]
    got = op(*inputs)
    assert got.dtype == dtype
    expected = op(*(x.double() for x in inputs))
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    if library == "native":
        alone = [op(*(x[row : row + 1] for x in inputs)) for row in range(NUM_ROWS)]
        assert torch.equal(torch.cat(alone), got)
