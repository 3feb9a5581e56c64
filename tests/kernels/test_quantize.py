"""Errors of quantized weights."""

import pytest
import torch
from quantized_cases import FORMS, Form, random_weight

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


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_two_levels_are_multiplied_out(name: str) -> None:
    weight = random_weight(FORMS[name], 5, 512)
    got = weight.dequantized()
    for output, column in ((0, 0), (4, 511), (2, 256), (3, 40)):
        group, block = column // weight.group, column // 256
        assert weight.super_scales is not None
        expected = float(weight.super_scales[block, output]) * int(weight.scales[group, output])
        expected *= int(weight.values[output, column])
        if weight.offsets is not None and weight.super_offsets is not None:
            expected += float(weight.super_offsets[block, output]) * int(weight.offsets[group, output])
        assert float(got[output, column]) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_an_order_says_which_input_a_column_is_of() -> None:
    weight = random_weight(FORMS["AWQ"], 5, 128)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(0))
    assert torch.equal(weight._replace(order=order).dequantized()[:, order], weight.dequantized())


def test_neighbours_of_one_kind_become_one_weight() -> None:
    parts = [random_weight(FORMS[name], rows, 256) for name, rows in (("Q4_K", 3), ("Q4_K", 2), ("Q6_K", 4))]
    other = parts[2]._replace(order=torch.arange(255, -1, -1))
    kinds = quantize.merged([*parts, other])
    assert [len(kind.values) for kind in kinds] == [5, 4, 4]
    assert torch.equal(quantize.dequantized(kinds, torch.float32), quantize.dequantized([*parts, other], torch.float32))


def test_rows_are_rounded_each_by_its_largest() -> None:
    x = torch.tensor([[1.0, -2.54, 0.02], [0.0, 0.0, 0.0]])
    values, scales = quantize.round_rows(x)
    assert values.tolist() == [[50, -127, 1], [0, 0, 0]]
    torch.testing.assert_close(scales[0], torch.tensor([0.02]))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("has_order", [False, True])
def test_a_part_of_a_weight_has_its_values(form: Form, has_order: bool) -> None:
    """Cut at borders of groups, at borders of super groups, and within a group."""
    weight = random_weight(form, 24, 512)
    if has_order:
        weight = weight._replace(order=torch.randperm(512, generator=torch.Generator().manual_seed(1)))
    whole = weight.dequantized()
    assert torch.equal(weight.rows(slice(5, 9)).dequantized(), whole[5:9])
    for columns in (slice(256, 512), slice(128, 384), slice(48, 96)):
        assert torch.equal(weight.columns(columns).dequantized(), whole[:, columns])
