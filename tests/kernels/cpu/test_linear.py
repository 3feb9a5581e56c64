"""Products of the native library: close to float64 at every odd size, and equal to the bit in any batch."""

import pytest
import torch
from torch import Tensor

from splitfuse.kernels.cpu import backend as cpu
from splitfuse.kernels.cpu import build, linear

pytestmark = pytest.mark.skipif(build.library() is None, reason="needs a C++ compiler for the native CPU library")
SHAPES = [(1, 2), (31, 7), (33, 48), (64, 130), (97, 1000), (200, 2816), (700, 129)]
NUM_ROWS = [1, 2, 3, 4, 5, 12, 13, 25, 96, 97, 200]


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_size(shape: tuple[int, int], has_bias: bool) -> None:
    weight, bias = randn(*shape, seed=0), randn(shape[0], seed=1) if has_bias else None
    packed = cpu.pack_linear(weight, bias)
    assert isinstance(packed, linear.NativeLinear)
    for num_rows in NUM_ROWS:
        x = randn(num_rows, shape[1], seed=num_rows)
        out, expected = cpu.linear(x, packed), x.double() @ weight.double().T
        if bias is not None:
            expected += bias.double()
        # Tolerance: half a unit in the last place of bfloat16, and float32 sums of K products.
        torch.testing.assert_close(out.double(), expected, rtol=2**-8, atol=2e-6 * shape[1])


@pytest.mark.parametrize("shape", SHAPES)
def test_float32(shape: tuple[int, int]) -> None:
    weight, bias = (randn(*size, seed=0, dtype=torch.float32) for size in (shape, shape[:1]))
    packed = cpu.pack_linear(weight, bias)
    assert isinstance(packed, linear.NativeLinear)
    for num_rows in NUM_ROWS:
        x = randn(num_rows, shape[1], seed=num_rows, dtype=torch.float32)
        expected = x.double() @ weight.double().T + bias.double()
        torch.testing.assert_close(cpu.linear(x, packed).double(), expected, rtol=2e-6, atol=2e-6 * shape[1])


def test_no_rows_and_strided_rows() -> None:
    weight, x = randn(40, 64, seed=0), randn(9, 100, seed=1)
    packed = cpu.pack_linear(weight)
    assert cpu.linear(x[:0, :64], packed).shape == (0, 40)
    assert torch.equal(cpu.linear(x[:, 10:74], packed), cpu.linear(x[:, 10:74].contiguous(), packed))


def test_what_is_not_finite_stays_in_its_row() -> None:
    packed, x = cpu.pack_linear(randn(40, 64, seed=0)), randn(5, 64, seed=1)
    clean = cpu.linear(x, packed)
    x[2, 3], x[3, 5] = torch.nan, torch.inf
    out = cpu.linear(x, packed)
    assert out[2].isnan().all()
    assert not out[3].isfinite().any()
    assert torch.equal(out[[0, 1, 4]], clean[[0, 1, 4]])


def test_a_missing_compiler_leaves_it_to_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "library", lambda: None)
    weight, x = randn(40, 64, seed=0), randn(5, 64, seed=1)
    packed = cpu.pack_linear(weight)
    assert not isinstance(packed, linear.NativeLinear)
    torch.testing.assert_close(cpu.linear(x, packed).double(), x.double() @ weight.double().T, rtol=2**-7, atol=2e-4)
    monkeypatch.setattr(linear, "_onednn_multiplies_bfloat16", lambda: False)
    packed = cpu.pack_linear(weight)
    assert isinstance(packed, linear.PlainLinear)
    torch.testing.assert_close(cpu.linear(x, packed).double(), x.double() @ weight.double().T, rtol=2**-7, atol=2e-4)
