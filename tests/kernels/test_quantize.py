"""Quantized weights: how far they are off."""

import pytest
import torch

from splitfuse.kernels import quantize

SHAPES = [(100, 128), (64, 256), (200, 384), (70, 1024), (3, 96)]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_no_value_is_off_by_more_than_half_a_step(shape: tuple[int, int]) -> None:
    weight = randn(*shape)
    eight = quantize.quantize(weight, 8)
    assert ((eight.dequantized() - weight).abs() <= 0.5001 * eight.scales.T).all()
    constant = torch.full(shape, 0.25)
    torch.testing.assert_close(quantize.quantize(constant, 4).dequantized(), constant)
    assert not quantize.quantize(torch.zeros(shape), 8).dequantized().any()


def test_the_search_lowers_the_error_of_int4() -> None:
    weight = randn(64, 512)
    grouped = weight.view(64, -1, 128)
    low, high = grouped.amin(2, keepdim=True), grouped.amax(2, keepdim=True)
    plain = ((grouped - low) / (high - low) * 15).round() / 15 * (high - low) + low
    found = quantize.quantize(weight, 4).dequantized()
    assert (found - weight).square().mean() < 0.97 * (plain.view(64, 512) - weight).square().mean()
