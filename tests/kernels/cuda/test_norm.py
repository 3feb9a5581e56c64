import pytest
import torch
from kernel_cases import DTYPES, INTERPRETED, assert_near, random_tensor

from splitfuse.kernels import reference
from splitfuse.kernels.cuda import norm

pytestmark = pytest.mark.sampled(12)

SHAPES = [(1, 64), (3, 100), (7, 896), (2, 4096), (1, 5120), (33, 48)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = random_tensor(*shape, seed=1, dtype=dtype), random_tensor(shape[1], seed=2, dtype=dtype)
    got = norm.rms_norm(x, weight, eps=1e-5)
    assert got.dtype == dtype
    assert_near(got, reference.rms_norm(x.double(), weight.double(), eps=1e-5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, residual = random_tensor(*shape, seed=1, dtype=dtype), random_tensor(*shape, seed=3, dtype=dtype)
    weight = random_tensor(shape[1], seed=2, dtype=dtype)
    expected = x.double() + residual.double()
    rounded = x + residual
    normed, total = norm.add_rms_norm(x, residual, weight, eps=1e-5)
    assert_near(total, expected)
    assert torch.equal(total, rounded) or (INTERPRETED and dtype == torch.bfloat16)
    assert_near(normed, reference.rms_norm(total.double(), weight.double(), eps=1e-5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layer_norm(shape: tuple[int, int], has_bias: bool, dtype: torch.dtype) -> None:
    x, residual = random_tensor(*shape, seed=1, dtype=dtype) + 3, random_tensor(*shape, seed=3, dtype=dtype)
    weight, bias = (random_tensor(shape[1], seed=s, dtype=dtype) for s in (2, 4))
    wide_bias = bias.double() if has_bias else None
    got = norm.layer_norm(x, weight, bias if has_bias else None, eps=1e-5)
    assert got.dtype == dtype
    assert_near(got, reference.layer_norm(x.double(), weight.double(), wide_bias, eps=1e-5))
    expected = x.double() + residual.double()
    normed, total = norm.add_layer_norm(x, residual, weight, bias if has_bias else None, eps=1e-5)
    assert_near(total, expected)
    assert_near(normed, reference.layer_norm(total.double(), weight.double(), wide_bias, eps=1e-5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_wide_weight_is_not_rounded(dtype: torch.dtype) -> None:
    x = random_tensor(3, 96, seed=1, dtype=dtype)
    weight = torch.full((96,), 1 + 0.4 * torch.finfo(dtype).eps, device=x.device)  # would be 1 if rounded
    expected = reference.rms_norm(x.double(), weight.double(), eps=1e-6)
    got = norm.rms_norm(x, weight, eps=1e-6)
    assert got.dtype == dtype
    assert_near(got, expected)
    if not INTERPRETED or dtype == torch.float16:  # the interpreter truncates bfloat16, the hardware rounds
        rounded = reference.rms_norm(x, weight.to(dtype), eps=1e-6)
        assert (got - expected).abs().mean() < 0.7 * (rounded - expected).abs().mean()
    assert_near(norm.add_rms_norm(x, torch.zeros_like(x), weight, eps=1e-6)[0], expected)


def test_rows_may_lie_apart() -> None:
    wide = random_tensor(5, 300, seed=1, dtype=torch.float16)
    weight = random_tensor(96, seed=2, dtype=torch.float16)
    x, residual = wide[:, 100:196], wide[:, 200:296].clone()
    around = wide.clone()
    expected, total = reference.add_rms_norm(x.double(), residual.double(), weight.double(), eps=1e-6)
    assert_near(norm.rms_norm(x, weight, eps=1e-6), reference.rms_norm(x.double(), weight.double(), eps=1e-6))
    got, got_total = norm.add_rms_norm(x, wide[:, 200:296], weight, eps=1e-6)
    assert_near(got, expected)
    assert_near(got_total, total)
    assert torch.equal(wide[:, :200], around[:, :200])
    assert torch.equal(wide[:, 296:], around[:, 296:])


def test_zero_rows_and_large_values() -> None:
    weight = torch.ones(32, dtype=torch.float16, device=random_tensor(1, seed=0, dtype=torch.float16).device)
    assert norm.rms_norm(weight.new_empty(0, 32), weight, eps=1e-6).shape == (0, 32)
    x = weight.new_full((2, 32), 60000.0)  # the squares overflow float16
    assert_near(norm.rms_norm(x, weight, eps=1e-6), torch.ones_like(x).double())
