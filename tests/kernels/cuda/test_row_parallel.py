"""Products with a weight whose columns are spread over GPUs: the ranks' terms add up to the whole product."""

from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, assert_near, random_tensor
from torch import Tensor

from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda.linear import fp8_linear
from splitfuse.kernels.cuda.linear.fp8_linear import Fp8Linear
from splitfuse.kernels.quantize import quantize, rounded
from splitfuse.kernels.row_parallel import pack_row_parallel

NUM_INPUTS, NUM_OUTPUTS = 256, 96


class Terms:
    """Group that keeps the terms of a rank."""

    def sum(self, partials: Tensor, *, width: int) -> Tensor:
        self.terms = partials.split(width, dim=1)
        return partials


def multiplied(x: Tensor, weight: Any, bias: Tensor | None, *, num_slices: int, size: int, **options: Any) -> Tensor:
    """Multiply on every rank, and add the terms in float64."""
    width, total = NUM_INPUTS // num_slices, torch.zeros(len(x), NUM_OUTPUTS, dtype=torch.float64, device=DEVICE)
    slices = [slice(width * number, width * (number + 1)) for number in range(num_slices)]
    for rank in range(size):
        own, group = slices[rank * num_slices // size : (rank + 1) * num_slices // size], Terms()
        packed = pack_row_parallel(
            weight, bias if rank == 0 else None, own, group, cuda, dtype=x.dtype, input_bits=16,
            **{"bits": 16, "is_fp8": False, **options},
        )  # fmt: skip
        cuda.linear(x[:, own[0].start : own[-1].stop].contiguous(), packed)  # type: ignore[arg-type]
        assert len(group.terms) == len(own)
        total += sum(term.double() for term in group.terms)
    return total


def case(dtype: torch.dtype, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    weight = random_tensor(NUM_OUTPUTS, NUM_INPUTS, seed=1, dtype=dtype) * NUM_INPUTS**-0.5
    return (
        random_tensor(num_rows, NUM_INPUTS, seed=3, dtype=dtype),
        weight,
        random_tensor(NUM_OUTPUTS, seed=2, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)  # the interpreter has wrong bfloat16 dots
@pytest.mark.parametrize(("num_slices", "size"), [(2, 2), (4, 2), (4, 1)])
def test_terms_add_up(num_slices: int, size: int, dtype: torch.dtype) -> None:
    x, weight, bias = case(dtype, 3)
    expected = x.double() @ weight.double().T + bias.double()
    assert_near(multiplied(x, weight, bias, num_slices=num_slices, size=size).to(dtype), expected, tolerance=2e-2)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_weight_is_rounded_whole(is_packed: bool, bits: int) -> None:
    """By --quantization, or in the files."""
    x, weight, bias = case(torch.float16, 3)
    whole = rounded(weight, bits=bits)
    assert not isinstance(whole, Tensor)
    expected = x.double() @ whole.dequantized().double().T + bias.double()
    given = quantize(weight, bits) if is_packed else weight
    got = multiplied(x, given, bias, num_slices=2, size=2, bits=16 if is_packed else bits)
    assert_near(got.half(), expected, tolerance=4e-3)


@pytest.mark.parametrize("num_rows", [3, pytest.param(40, marks=pytest.mark.thorough)])
def test_e4m3_keeps_the_scales_of_whole_rows(num_rows: int) -> None:
    x, weight, bias = case(torch.float16, num_rows)
    values, scales = fp8_linear.round_rows(weight)
    expected = torch.zeros(num_rows, NUM_OUTPUTS, dtype=torch.float64, device=DEVICE)
    for half in (slice(0, 128), slice(128, 256)):
        part = Fp8Linear(values[:, half].contiguous(), scales, bias if half.start == 0 else None)
        expected += cuda.linear(x[:, half].contiguous(), part).double()
    assert torch.equal(multiplied(x, weight, bias, num_slices=2, size=2, is_fp8=True), expected)
