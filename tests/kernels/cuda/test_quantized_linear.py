"""Products with quantized weights against the weight that the quantized one stands for, in float64."""

import pytest
import torch
from kernel_cases import DEVICE, DOT_DTYPES, assert_near, random_tensor

from splitfuse.kernels import quantize
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda import quantized_linear
from splitfuse.kernels.cuda.quantized_linear import Config, QuantizedLinear


def check(
    num_rows: int, shape: tuple[int, int], bits: int, dtype: torch.dtype, *, config: Config | None = None
) -> None:
    num_outputs, num_inputs = shape
    weight = random_tensor(num_outputs, num_inputs, seed=1, dtype=torch.float32) * num_inputs**-0.5
    bias = random_tensor(num_outputs, seed=2, dtype=dtype)
    x = torch.full((num_rows, num_inputs + 16), float("nan"), dtype=dtype, device=DEVICE)[:, :num_inputs]
    x.copy_(random_tensor(num_rows, num_inputs, seed=3, dtype=dtype))
    quantized = quantize.quantize(weight, bits)
    got = quantized_linear.multiply(x, quantized_linear.pack(quantized, bias), config=config)
    assert got.dtype == dtype
    assert_near(got, x.double() @ quantized.dequantized().double().T + bias.double(), tolerance=1e-4)


@pytest.mark.parametrize("dtype", DOT_DTYPES, ids=str)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", [(64, 256), (100, 128), (70, 192), (33, 96), (5, 384)], ids=str)
def test_shapes_and_groups(shape: tuple[int, int], bits: int, dtype: torch.dtype) -> None:
    for num_rows in (1, 19):
        check(num_rows, shape, bits, dtype)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("config", [Config(16, 16, 4, 4), Config(32, 64, 4, 4), Config(64, 64, 4, 4)], ids=str)
def test_tiles(config: Config, bits: int) -> None:
    check(70, (130, 256), bits, torch.float16, config=config)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("bits", [8, 4])
def test_many_rows_take_a_widened_copy(bits: int, dtype: torch.dtype) -> None:
    weight = random_tensor(40, 1056, seed=1, dtype=torch.float32)
    quantized = quantize.quantize(weight, bits)
    wide = quantized_linear.widen(quantized_linear.pack(quantized, None), 1056, dtype)
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-6}[dtype]
    torch.testing.assert_close(wide.float(), quantized.dequantized(), rtol=tolerance, atol=1e-6)
    x = random_tensor(quantized_linear.MIN_ROWS_TO_WIDEN, 1056, seed=2, dtype=dtype)
    got = quantized_linear.multiply(x, quantized_linear.pack(quantized, None))
    torch.testing.assert_close(got, x @ wide.T)


def test_int8_of_a_length_that_no_tile_divides() -> None:
    check(3, (40, 130), 8, torch.float16)


def test_a_shape_without_a_layout_stays_as_it_is() -> None:
    weight = random_tensor(8, 48, seed=1, dtype=torch.float32)
    assert isinstance(cuda.pack_linear(weight, bits=4), cuda.PackedLinear)
    packed = cuda.pack_linear(weight, bits=8)
    assert isinstance(packed, QuantizedLinear)
    x = random_tensor(3, 48, seed=2, dtype=torch.float32)
    torch.testing.assert_close(cuda.linear(x, packed), x @ quantize.quantize(weight, 8).dequantized().T)
