"""Products with quantized weights against products with the dequantized weight in float64."""

import pytest
import torch
from kernel_cases import DEVICE, DOT_DTYPES, assert_near, random_tensor
from no_waits import no_waits
from quantized_cases import FORMS, Form, random_weight

from splitfuse.kernels import quantize
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda import quantized_linear
from splitfuse.kernels.cuda.quantized_linear import Config, QuantizedLinear

pytestmark = pytest.mark.sampled(12)


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
    wide = quantized_linear.widen(quantized_linear.pack(quantized, None), dtype)
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


@pytest.mark.parametrize(("group", "num_inputs"), [(16, 128), (32, 320), (32, 512), (64, 256), (128, 256)])
def test_e2m1_is_exact_at_every_place(group: int, num_inputs: int) -> None:
    form = Form(4, group, is_signed=False, is_float4=True)
    weight = random_weight(form, 40, num_inputs).to(torch.device(DEVICE))
    packed, exact = quantized_linear.pack(weight, None), weight.dequantized()
    assert packed.group == group
    assert (packed.scales.dtype == torch.int32) == (group in (16, 32) or (group, num_inputs) == (64, 256))
    each_input = torch.eye(num_inputs, dtype=torch.float16, device=DEVICE)
    got = quantized_linear.multiply(each_input, packed, config=Config(32, 64, 2, 2))
    assert torch.equal(got, exact.T.half())
    assert torch.equal(quantized_linear.widen(packed, torch.float32), exact)
    assert torch.equal(quantized_linear.rows(torch.arange(40, device=DEVICE), packed, dtype=torch.float32), exact)
    other = quantized_linear.pack(weight._replace(scales=weight.scales * 1.5), None)  # no powers of two
    assert other.scales.dtype == torch.float32
    assert torch.equal(quantized_linear.widen(other, torch.float32), exact * 1.5)


@pytest.mark.parametrize("name", FORMS)
def test_every_form_stays_packed(name: str) -> None:
    form = FORMS[name]
    num_inputs = form.super_group or form.group or 44
    weight = random_weight(form, 40, num_inputs).to(torch.device(DEVICE))
    x = random_tensor(5, num_inputs, seed=3, dtype=torch.float16)
    packed = cuda.pack_quantized([weight], dtype=torch.float16)
    assert isinstance(packed, QuantizedLinear)
    exact = weight.dequantized()
    assert_near(cuda.linear(x, packed), x.double() @ exact.double().T, tolerance=1e-4)
    torch.testing.assert_close(quantized_linear.widen(packed, torch.float32), exact)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q8_0", "float8 of 128", "float8 in blocks", "MXFP4"])
def test_rows_of_a_table_are_those_of_the_weight(name: str) -> None:
    weight, ids = random_weight(FORMS[name], 40, 256).to(torch.device(DEVICE)), torch.tensor([39, 0, 7], device=DEVICE)
    table, x = cuda.pack_embedding(weight, dtype=torch.float32), random_tensor(3, 256, seed=3, dtype=torch.float32)
    with no_waits():  # a CUDA graph captures it
        found = cuda.embedding(ids, table)
    torch.testing.assert_close(found, weight.dequantized()[ids])
    torch.testing.assert_close(cuda.linear(x, table), x @ weight.dequantized().T, rtol=1e-4, atol=1e-4)


def test_parts_of_different_forms_orders_and_rounded_rows() -> None:
    device, order = torch.device(DEVICE), torch.randperm(128, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    parts = [random_weight(FORMS[name], rows, 128).to(device) for name, rows in (("AWQ", 20), ("Q8_0", 13))]
    parts.append(parts[0]._replace(order=order))
    bias, x = random_tensor(53, seed=2, dtype=torch.float32), random_tensor(4, 128, seed=3, dtype=torch.float32)
    exact = torch.cat([part.dequantized() for part in parts])
    got = cuda.linear(x, cuda.pack_quantized(parts, bias, dtype=torch.float32))
    torch.testing.assert_close(got, x @ exact.T + bias, rtol=1e-4, atol=1e-4)
    rounded = random_weight(FORMS["int8 per channel"], 40, 128).to(device)._replace(rounds_inputs=True)
    values, scales = quantize.round_rows(x)
    got = cuda.linear(x, cuda.pack_quantized([rounded], dtype=torch.float32))
    torch.testing.assert_close(got, (values * scales) @ rounded.dequantized().T, rtol=1e-4, atol=1e-4)


def test_groups_that_no_dot_takes_are_widened() -> None:
    weight = random_weight(Form(4, 24), 8, 48).to(torch.device(DEVICE))
    packed, x = cuda.pack_quantized([weight], dtype=torch.float32), random_tensor(3, 48, seed=2, dtype=torch.float32)
    assert isinstance(packed, cuda.PackedLinear)
    torch.testing.assert_close(cuda.linear(x, packed), x @ weight.dequantized().T)
