"""Products of a few rows against float64, gated and not, split and not; a row's result depends on no other row."""

import pytest
import torch
from kernel_cases import DEVICE, DOT_DTYPES, assert_near, random_tensor
from torch import Tensor

from splitfuse.kernels import reference
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda.device_info import H100
from splitfuse.kernels.cuda.linear import few_rows
from splitfuse.kernels.cuda.linear.few_rows import Config, Weight

pytestmark = pytest.mark.sampled(12)

SHAPES = [(48, 256), (34, 130), (16, 1100), (130, 512)]
CONFIGS = [None, Config(16, 64, 4, 4), Config(32, 128, 4, 3)]


def inputs(num_rows: int, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Weight]:
    """Return rows of a wider tensor of NaN, and a weight with a bias."""
    num_outputs, num_inputs = shape
    x = torch.full((num_rows, num_inputs + 16), float("nan"), dtype=dtype, device=DEVICE)[:, :num_inputs]
    x.copy_(random_tensor(num_rows, num_inputs, seed=1, dtype=dtype))
    values = (random_tensor(num_outputs, num_inputs, seed=2, dtype=torch.float32) * num_inputs**-0.5).to(dtype)
    return x, Weight(values, None, random_tensor(num_outputs, seed=3, dtype=dtype))


def expected(x: Tensor, weight: Weight, *, is_gated: bool) -> Tensor:
    assert weight.bias is not None
    out = x.double() @ weight.values.double().T + weight.bias.double()
    return reference.silu_mul(out) if is_gated else out


@pytest.mark.parametrize("dtype", DOT_DTYPES, ids=str)
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, int], is_gated: bool, dtype: torch.dtype) -> None:
    for num_rows, num_splits in ((1, None), (3, 1), (8, 2), (16, 7)):
        x, weight = inputs(num_rows, shape, dtype)
        got = few_rows.multiply(x, weight, dtype=dtype, is_gated=is_gated, num_splits=num_splits)
        assert_near(got, expected(x, weight, is_gated=is_gated), tolerance=1e-4)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("num_splits", [1, 3])
def test_a_row_gives_the_same_whatever_is_beside_it(config: Config | None, num_splits: int) -> None:
    x, weight = inputs(8, (48, 1100), torch.float16)
    options = {"dtype": torch.float16, "config": config, "num_splits": num_splits}
    together = few_rows.multiply(x, weight, **options)  # type: ignore[arg-type]
    for row in range(8):
        alone = few_rows.multiply(x[row : row + 1], weight, **options)  # type: ignore[arg-type]
        assert torch.equal(alone[0], together[row])


def test_k_is_split_where_the_outputs_are_few() -> None:
    config = few_rows.choose_config(2, H100)
    splits = {n: few_rows.choose_num_splits(n, 8192, config, H100) for n in (16, 1024, 2048, 4096, 28672, 128_256)}
    assert splits == {16: 8, 1024: 8, 2048: 8, 4096: 4, 28672: 1, 128_256: 1}
    assert few_rows.choose_num_splits(1024, 512, config, H100) == 1, "nothing to split"


def test_the_backend_takes_it_for_a_few_rows_of_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, bool]] = []
    multiply = few_rows.multiply

    def noted(x: Tensor, weight: Weight, *, is_gated: bool = False, **options: object) -> Tensor:
        calls.append((len(x), is_gated))
        return multiply(x, weight, is_gated=is_gated, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(few_rows, "multiply", noted)
    for num_rows, dtype in ((0, torch.float16), (8, torch.float16), (9, torch.float16), (4, torch.float32)):
        x, weight = inputs(num_rows, (32, 64), dtype)
        packed = cuda.pack_linear(weight.values, weight.bias)
        assert_near(cuda.linear(x, packed), expected(x, weight, is_gated=False), tolerance=1e-3)
        assert_near(cuda.linear_silu_mul(x, packed), expected(x, weight, is_gated=True), tolerance=1e-3)
    assert calls == [(8, False), (8, True)]
