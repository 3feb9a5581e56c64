"""Products in int8 against float64 products of the rounded values; their sums are integers, so bits are compared."""

from typing import Any

import pytest
import torch
import triton
from kernel_cases import DEVICE, DTYPES, assert_near, random_tensor
from torch import Tensor

from splitfuse.kernels import reference
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda.device_info import H100, SMALLEST_SHARED_MEMORY, DeviceInfo
from splitfuse.kernels.cuda.linear import byte_linear, int8_linear
from splitfuse.kernels.cuda.linear.byte_linear import Config
from splitfuse.kernels.cuda.linear.fp8_linear import round_rows
from splitfuse.kernels.cuda.linear.int8_linear import Int8Linear
from splitfuse.kernels.quantize import QuantizedWeight, quantize

pytestmark = pytest.mark.sampled(12)

GPUS = [H100, DeviceInfo(80, 108, 166_912), DeviceInfo(89, 58, SMALLEST_SHARED_MEMORY)]
CONFIGS = {
    byte_linear.choose_config(rows, outputs, gpu)
    for rows in (1, 40, 100, 2048)
    for outputs in (96, 28672)
    for gpu in GPUS
}


def _weight(num_outputs: int, num_inputs: int, **fields: Any) -> QuantizedWeight:
    plain = random_tensor(num_outputs, num_inputs, seed=1, dtype=torch.float32) * num_inputs**-0.5
    return quantize(plain, 8)._replace(**{"rounds_inputs": True, **fields})


def _rows(num_rows: int, num_inputs: int, dtype: torch.dtype) -> Tensor:
    """Return rows as a view of a wider tensor of NaN, with values of different sizes."""
    wide = torch.full((num_rows, num_inputs + 24), float("nan"), dtype=dtype, device=DEVICE)
    wide[:, 8:-16] = random_tensor(num_rows, num_inputs, seed=3, dtype=dtype)
    wide[:, 8:-16] *= torch.linspace(0.5, 2.0, num_rows, device=DEVICE)[:, None].to(dtype)
    return wide[:, 8:-16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 16, 17, 70])
@pytest.mark.parametrize("shape", [(96, 272), (40, 528)], ids=str)
def test_products(shape: tuple[int, int], num_rows: int, dtype: torch.dtype) -> None:
    weight, x = _weight(*shape), _rows(num_rows, shape[1], dtype)
    bias = random_tensor(shape[0], seed=2, dtype=dtype)
    packed = cuda.pack_quantized([weight], bias, dtype=dtype)
    assert isinstance(packed, Int8Linear)
    values, scales = round_rows(x, dtype=torch.int8)
    expected = (values.double() * scales.double()[:, None]) @ weight.dequantized().double().T + bias.double()
    got = cuda.linear(x, packed)
    assert got.dtype == dtype
    assert_near(got, expected, tolerance=4e-3 if dtype != torch.float32 else 0.0)
    assert_near(cuda.linear_silu_mul(x, packed), reference.silu_mul(expected), tolerance=8e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_rounded_to_nearest(dtype: torch.dtype) -> None:
    factors = torch.tensor([[1.0], [1e-4], [1e4], [0.0], [3.0]], device=DEVICE)
    x = (random_tensor(5, 130, seed=1, dtype=torch.float32) * factors).to(dtype)
    values, scales = round_rows(x, dtype=torch.int8)
    largest = x.double().abs().amax(dim=1)
    torch.testing.assert_close(scales.double(), (largest / 127).clamp_min(1e-30), rtol=1e-6, atol=0)
    assert torch.equal(values.float(), (x.float() / scales[:, None]).round())


@pytest.mark.parametrize("config", sorted(CONFIGS), ids=str)
def test_neither_tiles_nor_splits_nor_rows_change_a_bit(config: Config) -> None:
    weight, x = _weight(70, 400), _rows(20, 400, torch.float32)
    packed = int8_linear.pack(weight, random_tensor(70, seed=2, dtype=torch.float32))
    whole = int8_linear.multiply(x, packed, config=Config(16, 16, 32, 4, 1), num_splits=1)
    for num_splits in (1, 3):
        assert torch.equal(int8_linear.multiply(x, packed, config=config, num_splits=num_splits), whole)
    assert torch.equal(int8_linear.multiply(x[3:5], packed, config=config), whole[3:5])


def test_the_largest_sums_are_exact() -> None:
    """In float32 sums beyond 2^24 would be rounded."""
    ones = torch.full((1, 4112), 127, dtype=torch.int8, device=DEVICE)
    ones[0, -1] = 126
    packed = Int8Linear(ones, torch.ones(1, device=DEVICE), None)
    got = int8_linear.multiply(ones.float() * 127, packed)
    assert got.item() == torch.tensor(127.0) * float(127 * 127 * 4111 + 126 * 126)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy, under the interpreter
@pytest.mark.parametrize("num_rows", [2, 20])
def test_what_is_not_finite_is_told_and_stays_in_its_row(num_rows: int) -> None:
    x = random_tensor(num_rows, 64, seed=1, dtype=torch.float16)
    x[1, 3] = float("inf")
    out = cuda.linear(x, cuda.pack_quantized([_weight(32, 64)], dtype=torch.float16))
    assert not out[1].isfinite().any()
    assert out[0].isfinite().all()


def test_weights_alone_are_int8_unless_inputs_may_be_rounded() -> None:
    """A file that rounds weights alone keeps its inputs, unless --quantization-activations allows it."""
    weight, plain = _weight(32, 64, rounds_inputs=False), random_tensor(32, 64, seed=1, dtype=torch.float16)
    assert not isinstance(cuda.pack_quantized([weight], dtype=torch.float16), Int8Linear)
    assert isinstance(cuda.pack_quantized([weight], dtype=torch.float16, input_bits=8), Int8Linear)
    assert isinstance(cuda.pack_linear(plain, bits=8, input_bits=8), Int8Linear)
    assert not isinstance(cuda.pack_linear(plain, bits=8), Int8Linear)
    for kept in (weight._replace(values=weight.values[:, :56]), weight._replace(scales=weight.scales.expand(2, -1))):
        assert not int8_linear.has_layout(kept)


def test_an_order_of_inputs_is_applied_before() -> None:
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    weight, x = _weight(32, 64, order=order), random_tensor(3, 64, seed=3, dtype=torch.float32)
    packed = cuda.pack_quantized([weight], dtype=torch.float32)
    assert isinstance(packed, cuda.PreparedLinear)
    assert isinstance(packed.linear, Int8Linear)
    values, scales = round_rows(x, dtype=torch.int8)
    expected = (values.double() * scales.double()[:, None]) @ weight.dequantized().double().T
    assert_near(cuda.linear(x, packed), expected)


def test_few_outputs_are_split_and_powers_of_two_have_all_kernels() -> None:
    """A length of parts that no power of two has would be compiled while requests wait."""

    def num_splits(num_rows: int) -> int:
        config = byte_linear.choose_config(num_rows, 4096, H100)
        return byte_linear.choose_num_splits(num_rows, 4096, 14336, config, H100)

    assert [num_splits(2**power) for power in range(12)] == [4] * 5 + [8, 2, 4, 2] + [1] * 3
    for num_rows in range(1, 2049):
        assert num_splits(num_rows) == num_splits(triton.next_power_of_2(num_rows))
