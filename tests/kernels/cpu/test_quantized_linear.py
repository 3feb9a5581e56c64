"""The CPU multiplies by exactly what quantized weights say."""

import pytest
import torch

from splitfuse.kernels import quantize
from splitfuse.kernels.cpu import backend as cpu
from splitfuse.kernels.cpu import build
from splitfuse.kernels.cpu.quantized_linear import QuantizedLinear

SHAPES = [(100, 128), (64, 256), (200, 384), (70, 1024), (3, 96)]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", [1, 5, 13, 200])
def test_the_product_is_that_of_the_dequantized_weight(
    bits: int, dtype: torch.dtype, shape: tuple[int, int], num_rows: int
) -> None:
    if build.library() is None:
        pytest.skip("needs a C++ compiler for the native CPU library")
    weight, bias = randn(*shape), randn(shape[0], seed=1).to(dtype)
    x = randn(num_rows, shape[1], seed=2).to(dtype)
    packed = cpu.pack_linear(weight.to(dtype), bias, bits=bits)
    assert isinstance(packed, QuantizedLinear)
    exact = quantize.quantize(weight.to(dtype), bits).dequantized().double()
    expected = x.double() @ exact.T + bias.double()
    error = (cpu.linear(x, packed).double() - expected).abs().max() / expected.abs().max()
    # int4 as 128 + u loses four bits when the 128 is taken off again; quantizing loses some 16.
    assert error < (8e-3 if dtype is torch.bfloat16 else 5e-5)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_is_the_same_to_the_bit_alone_and_in_a_batch(bits: int, dtype: torch.dtype) -> None:
    if build.library() is None:
        pytest.skip("needs a C++ compiler for the native CPU library")
    packed, x = cpu.pack_linear(randn(700, 672).to(dtype), bits=bits), randn(200, 672, seed=2).to(dtype)
    together = cpu.linear(x, packed)
    for size in (1, 2, 3, 4, 7, 12, 13, 40, 97):
        parts = [cpu.linear(part, packed) for part in torch.split(x, size)]
        assert torch.equal(torch.cat(parts), together), size


@pytest.mark.parametrize("bits", [8, 4])
def test_values_of_any_size_meet_the_weights_as_they_are(bits: int) -> None:
    """bfloat16 rows under one exponent per group: its ends, and a largest value 2^7 times the others."""
    weight = randn(70, 384).bfloat16()
    packed, exact = cpu.pack_linear(weight, bits=bits), quantize.quantize(weight, bits).dequantized().double()
    x = randn(6, 384, seed=2).clamp(-1.99, 1.99).bfloat16()
    x[0, 7], x[1] = -255, 0
    x[2] *= 2.0**100
    x[3] *= 2.0**-90
    x[4, 128:] *= 2.0**-30
    x[5, :256] = 1.9921875  # all bits of the mantissa set
    expected = x.double() @ exact.T
    error = (cpu.linear(x, packed).double() - expected).abs().amax(1)
    assert (error <= 2**-8 * expected.abs().amax(1)).all()


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_stays_in_its_row(bits: int, dtype: torch.dtype) -> None:
    packed, x = cpu.pack_linear(randn(40, 64).to(dtype), bits=bits), randn(5, 64, seed=1).to(dtype)
    clean = cpu.linear(x, packed)
    x[2, 3], x[3, 5] = torch.nan, torch.inf
    out = cpu.linear(x, packed)
    assert out[2].isnan().all()
    assert not out[3].isfinite().any()
    assert torch.equal(out[[0, 1, 4]], clean[[0, 1, 4]])


def test_a_shape_without_a_layout_stays_as_it_is() -> None:
    packed = cpu.pack_linear(randn(8, 33), bits=8)
    assert not isinstance(packed, QuantizedLinear)
    assert not isinstance(cpu.pack_linear(randn(8, 48), bits=4), QuantizedLinear)


def test_without_a_compiler_the_same_values_are_multiplied_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "library", lambda: None)
    weight, x = randn(40, 64), randn(3, 64, seed=1)
    exact = quantize.quantize(weight, 4).dequantized()
    torch.testing.assert_close(cpu.linear(x, cpu.pack_linear(weight, bits=4)), x @ exact.T)
