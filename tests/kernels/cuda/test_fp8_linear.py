"""Products in e4m3 against float64 products of the rounded values, with few rows and many."""

import pytest
import torch
from kernel_cases import DEVICE, DTYPES, assert_near, random_tensor

from splitfuse.kernels import reference
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda.linear import byte_linear, few_rows, fp8_linear
from splitfuse.kernels.cuda.linear.fp8_linear import Fp8Linear

pytestmark = pytest.mark.sampled(12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_inputs", [16, 130, 1000])
def test_rows_are_rounded_to_nearest(num_inputs: int, dtype: torch.dtype) -> None:
    factors = torch.tensor([[1.0], [1e-4], [1e4], [0.0], [3.0]], device=DEVICE)
    x = (random_tensor(5, num_inputs, seed=1, dtype=torch.float32) * factors).to(dtype)
    values, scales = fp8_linear.round_rows(x)
    largest = x.double().abs().amax(dim=1)
    torch.testing.assert_close(scales.double(), (largest / 448).clamp_min(1e-30), rtol=1e-6, atol=0)
    exact = x.float() / scales[:, None]
    assert torch.equal(values.view(torch.uint8), exact.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_rows", [1, 8, 9, 40])
def test_products(num_rows: int, dtype: torch.dtype) -> None:
    weight = random_tensor(96, 272, seed=1, dtype=dtype) * 272**-0.5
    bias, x = random_tensor(96, seed=2, dtype=dtype), random_tensor(num_rows, 272, seed=3, dtype=dtype)
    packed = cuda.pack_fp8(weight, bias)
    assert isinstance(packed, Fp8Linear)
    values, scales = fp8_linear.round_rows(x)
    wide, weights = (each.double() * s.double()[:, None] for each, s in ((values, scales), packed[:2]))
    expected = wide @ weights.T + bias.double()
    got = cuda.linear(x, packed)
    assert got.dtype == dtype
    assert_near(got, expected, tolerance=4e-3)
    assert_near(cuda.linear_silu_mul(x, packed), reference.silu_mul(expected), tolerance=4e-3)


def test_a_token_is_rounded_alike_however_many_there_are() -> None:
    x = random_tensor(40, 256, seed=3, dtype=torch.float16)
    packed = cuda.pack_fp8(random_tensor(64, 256, seed=1, dtype=torch.float16) / 16)
    few = torch.cat([cuda.linear(rows, packed) for rows in x.split(8)])
    assert_near(few, cuda.linear(x, packed).double(), tolerance=4e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("num_rows", [9, 20])
def test_products_of_bytes(num_rows: int, num_splits: int, dtype: torch.dtype) -> None:
    """Check the kernel for 9 to 32 rows, which neither the interpreter nor GPUs without e4m3 in tensor cores choose."""
    packed = fp8_linear.pack(random_tensor(96, 400, seed=1, dtype=dtype) / 20, random_tensor(96, seed=2, dtype=dtype))
    values, scales = fp8_linear.round_rows(random_tensor(num_rows, 400, seed=3, dtype=dtype))
    wide, weights = (each.double() * s.double()[:, None] for each, s in ((values, scales), packed[:2]))
    assert packed.bias is not None
    weight = few_rows.Weight(packed.values.view(torch.uint8), *packed[1:])
    got = byte_linear.multiply(values.view(torch.uint8), scales, weight, dtype=dtype, num_splits=num_splits)
    assert got.dtype == dtype
    assert_near(got, wide @ weights.T + packed.bias.double(), tolerance=4e-3)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy, under the interpreter
@pytest.mark.parametrize("num_rows", [2, 20])
def test_what_is_not_finite_is_told_and_stays_in_its_row(num_rows: int) -> None:
    x = random_tensor(num_rows, 64, seed=1, dtype=torch.float16)
    x[1, 3] = float("inf")
    out = cuda.linear(x, cuda.pack_fp8(random_tensor(32, 64, seed=2, dtype=torch.float16)))
    assert not out[1].isfinite().any()
    assert out[0].isfinite().all()


def test_a_shape_that_cublas_does_not_take_stays_as_it_is() -> None:
    weight = random_tensor(40, 72, seed=1, dtype=torch.float16)
    packed = cuda.pack_fp8(weight)
    assert isinstance(packed, cuda.PackedLinear)
    assert packed.weight is weight


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_products_in_e4m3_of_torch(dtype: torch.dtype) -> None:
    """torch's products in e4m3, which GPUs use for many rows, also work on a CPU."""
    packed = fp8_linear.pack(random_tensor(96, 272, seed=1, dtype=dtype) * 272**-0.5, None)
    values, scales = fp8_linear.round_rows(random_tensor(40, 272, seed=3, dtype=dtype))
    wide, weights = (each.double() * s.double()[:, None] for each, s in ((values, scales), packed[:2]))
    assert_near(fp8_linear._scaled_matmul(values, scales, packed, dtype), wide @ weights.T, tolerance=4e-3)
