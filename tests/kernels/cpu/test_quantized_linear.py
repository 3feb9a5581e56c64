"""Products on the CPU use exactly the values of quantized weights."""

from pathlib import Path

import pytest
import torch
from patched_library import patched_ops
from quantized_cases import FORMS, Form, random_weight

from splitfuse.kernels import ops, quantize
from splitfuse.kernels.cpu import backend as cpu
from splitfuse.kernels.cpu import build, compilation, quantized_linear
from splitfuse.kernels.cpu.quantized_linear import QuantizedLinear

pytestmark = pytest.mark.sampled(2)

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
    # int4 as 128 + u loses four bits when 128 is subtracted again; quantizing loses some 16.
    assert error < (8e-3 if dtype is torch.bfloat16 else 5e-5)


@pytest.mark.parametrize("bits", [8, 4])
def test_values_of_any_size_meet_the_weights_as_they_are(bits: int) -> None:
    """Rows in bfloat16 have one exponent per group: tests its ends, and a largest value 2^7 times the others."""
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


@pytest.fixture
def library() -> build.Library:
    library = build.library()
    if library is None:
        pytest.skip("needs a C++ compiler for the native CPU library")
    return library


def assert_close(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *, bound: float) -> None:
    """Assert that errors are at most `bound` times the sum of the products' sizes."""
    expected, size = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    assert ((got.double() - expected).abs() <= bound * size + 1e-30).all()


# In bfloat16, results, and weights on some processors, have relative errors of 2^-8; in float32 only sums have errors.
BOUNDS = {torch.bfloat16: 2**-7, torch.float32: 2**-20}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_form_at_odd_sizes(library: build.Library, name: str, dtype: torch.dtype) -> None:
    form = FORMS[name]
    for num_outputs, num_groups in ((1, 1), (33, 2), (70, 3)):
        num_inputs = num_groups * (form.super_group or form.group or 44)
        weight = random_weight(form, num_outputs, num_inputs)
        packed = cpu.pack_quantized([weight], dtype=dtype)
        assert isinstance(packed, QuantizedLinear)
        for num_rows in (0, 1, 2, 5, 13, 33, 70):
            x = randn(num_rows, num_inputs, seed=num_rows).to(dtype)
            x[:, ::16] *= 64  # large values: int8 would leave few bits of the others
            assert_close(cpu.linear(x, packed), x, weight.dequantized(), bound=BOUNDS[dtype])


@pytest.mark.parametrize("group", [80, 256])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_of_a_group(library: build.Library, group: int, sign: int) -> None:
    """Products of integers of 8 and 15 bits would add up to 2^31 if 518 inputs were rounded together."""
    weight = random_weight(Form(8, group, is_signed=False, has_offsets=True), 40, 3 * group)
    weight = weight._replace(values=torch.full_like(weight.values, 255))
    packed, x = cpu.pack_quantized([weight], dtype=torch.bfloat16), torch.full((7, 3 * group), sign * 3.0).bfloat16()
    assert_close(cpu.linear(x, packed), x, weight.dequantized(), bound=BOUNDS[torch.bfloat16])


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if not form.is_float8])
def test_inputs_rounded_to_int8_meet_the_weight_as_it_is(library: build.Library, name: str) -> None:
    """The only error is that of rounding an input, half a 127th of its group's largest."""
    form = FORMS[name]
    num_inputs = 2 * (form.super_group or form.group or 48)
    weight, x = random_weight(form, 70, num_inputs), randn(20, num_inputs, seed=1)
    exact = cpu.linear(x, cpu.pack_quantized([weight], dtype=torch.float32, input_bits=8))
    assert_close(exact, x, weight.dequantized(), bound=0.05)
    assert not torch.equal(exact, cpu.linear(x, cpu.pack_quantized([weight], dtype=torch.float32)))
    whole = torch.randint(-127, 128, x.shape, generator=torch.Generator().manual_seed(2)).float()
    whole[:, :: form.group if 0 < form.group < 32 else 32] = 127  # makes a group's scale 1, so that integers stay exact
    packed = cpu.pack_quantized([weight], dtype=torch.float32, input_bits=8)
    assert_close(cpu.linear(whole, packed), whole, weight.dequantized(), bound=2**-20)


@pytest.mark.parametrize("num_rows", [5, 70])
@pytest.mark.parametrize("input_bits", [16, 8])
def test_a_rounded_row_that_is_not_finite_stays_alone(library: build.Library, input_bits: int, num_rows: int) -> None:
    packed = cpu.pack_quantized([random_weight(FORMS["Q4_1"], 40, 64)], dtype=torch.bfloat16, input_bits=input_bits)
    x = randn(num_rows, 64, seed=1).bfloat16()
    clean = cpu.linear(x, packed)
    x[2, 3], x[3, 5], x[4] = torch.nan, torch.inf, 0
    out = cpu.linear(x, packed)
    assert out[2].isnan().all()
    assert not out[3].isfinite().any()
    assert torch.equal(out[:2], clean[:2])
    assert torch.equal(out[5:], clean[5:])
    assert not out[4].any()


def test_parts_of_different_forms_stand_one_above_the_other(library: build.Library) -> None:
    parts = [random_weight(FORMS[name], rows, 256) for name, rows in (("Q4_K", 40), ("Q4_K", 33), ("Q6_K", 50))]
    bias, x = randn(123, seed=1), randn(7, 256, seed=2)
    got = cpu.linear(x, cpu.pack_quantized(parts, bias, dtype=torch.float32))
    exact = torch.cat([part.dequantized() for part in parts])
    torch.testing.assert_close(got, x @ exact.T + bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("native", [True, False])
def test_inputs_in_another_order(library: build.Library, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(build, "library", lambda: None)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(3))
    weight = random_weight(FORMS["AWQ"], 40, 256)._replace(order=order)
    other, x = weight._replace(order=order.flip(0)), randn(7, 256, seed=2)
    got = cpu.linear(x, cpu.pack_quantized([weight, other], dtype=torch.float32))
    exact = torch.cat([x[:, order] @ weight._replace(order=None).dequantized().T, x @ other.dequantized().T], dim=1)
    torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_rounded_as_the_format_says(
    library: build.Library, native: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(build, "library", lambda: None)
    weight = random_weight(FORMS["int8 per channel"], 40, 100)._replace(rounds_inputs=True)
    bias, x = randn(40, seed=1).to(dtype), randn(7, 100, seed=2).to(dtype)
    got = cpu.linear(x, cpu.pack_quantized([weight], bias, dtype=dtype))
    values, scales = quantize.round_rows(x)
    exact = (values.double() @ weight.dequantized().double().T) * scales.double() + bias.double()
    torch.testing.assert_close(
        got.double(),
        exact,
        rtol=2**-8 if dtype is torch.bfloat16 else 1e-5,
        atol=2e-2 if dtype is torch.bfloat16 else 1e-4,
    )


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_rows_of_a_table_are_those_of_the_weight(
    library: build.Library, native: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(build, "library", lambda: None)
    form, ids = FORMS[name], torch.tensor([69, 0, 31, 32, 0, 64])
    num_inputs = 2 * (form.super_group or form.group or 44)
    weight, x = random_weight(form, 70, num_inputs), randn(3, num_inputs)
    table = cpu.pack_embedding(weight, dtype=torch.float32)
    torch.testing.assert_close(cpu.embedding(ids, table), weight.dequantized()[ids], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(cpu.linear(x, table), x @ weight.dequantized().T, rtol=1e-4, atol=1e-4)
    assert cpu.embedding(ids[:0], cpu.pack_embedding(weight, dtype=torch.bfloat16)).shape == (0, num_inputs)


def test_packed_weights_are_about_as_large_as_in_their_files(library: build.Library) -> None:
    bits = {"Q8_0": 8.5, "Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625}
    bits |= {"Q3_K": 3.4375, "IQ4_NL": 4.5, "IQ4_XS": 4.25, "TQ2_0": 2.0625}
    # A scale has a byte instead of half of one; three bits are an index of six numbers, not of eight values at once.
    bits |= {"Q2_K": 3.125, "IQ2_XS": 3.5625, "IQ2_XXS": 3.3125, "NVFP4": 5}
    for name, file_bits in bits.items():
        layout = quantized_linear._layout(random_weight(FORMS[name], 512, 512), library)
        size = sum(part.nbytes for part in layout.values() if isinstance(part, torch.Tensor))
        assert size <= 1.05 * file_bits / 8 * 512 * 512, name
        planned = random_weight(FORMS[name], 512, 512).packed_bits(is_gpu=False) / 8 * 512 * 512
        assert size == pytest.approx(planned, rel=0.001), name


def test_what_has_no_layout_is_widened(library: build.Library) -> None:
    weight = random_weight(Form(4, 24), 40, 48)
    x = randn(3, 48, seed=1)
    packed = cpu.pack_quantized([weight], dtype=torch.float32)
    assert not isinstance(packed, QuantizedLinear)
    torch.testing.assert_close(cpu.linear(x, packed), x @ weight.dequantized().T)
    weight = random_weight(FORMS["float8 of 128"], 40, 128)
    weight.values.view(torch.uint8)[3, 5] = 0x7F  # NaN
    out = cpu.linear(randn(3, 128), cpu.pack_quantized([weight], dtype=torch.float32))
    assert out[:, 3].isnan().all()
    assert out[:, :3].isfinite().all()


# Flags of the compiler, and the features that the processor must have for them.
BUILDS = {
    "AVX2": ("x86-64-v3", "avx2"),
    "AVX2 with byte products": ("alderlake", "avx_vnni"),
    "AVX-512": ("skylake-avx512", "avx512bw"),
    "AVX-512 with byte products": ("cascadelake", "avx512_vnni"),
    "AVX-512 with bfloat16": ("cooperlake", "avx512_bf16"),
}
_BYTE_PRODUCTS = ("AVX2 with byte products", "AVX-512 with byte products", "AVX-512 with bfloat16")


# A build takes 6 to 11 s: `make test` has the one that differs most, `make thorough` and `make builds` the others.
@pytest.mark.parametrize("name", ["AVX2", *(pytest.param(name, marks=pytest.mark.thorough) for name in [*BUILDS][1:])])
def test_builds_for_other_processors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are right, and equal to the bit in any batch, on the code paths of other processors."""
    arch, needed = BUILDS[name]
    if build.library() is None or needed not in compilation.cpu_features().split():
        pytest.skip(f"needs a C++ compiler and a processor with {needed}")
    stems = [source.stem for source in compilation.FOLDER.glob("quantized_*.cpp")]
    built = patched_ops(tmp_path, stems, flags=["-O1", f"-march={arch}"])
    monkeypatch.setattr(build, "library", lambda: built)
    for form in ("Q8_0", "Q4_K", "Q5_0", "Q6_K", "Q2_K", "Q3_K", "IQ4_XS", "GPTQ 8 bits", "float8 of 128"):
        weight, x = random_weight(FORMS[form], 70, 512), randn(70, 512, seed=1)
        for dtype in (torch.float32, torch.bfloat16):
            packed = cpu.pack_quantized([weight], dtype=dtype)
            together = cpu.linear(x.to(dtype), packed)
            assert_close(together, x.to(dtype), weight.dequantized(), bound=BOUNDS[dtype])
            rounded = cpu.pack_quantized([weight], dtype=dtype, input_bits=8)
            assert_close(cpu.linear(x.to(dtype), rounded), x.to(dtype), weight.dequantized(), bound=0.05)
            if form != "float8 of 128":
                fast = cpu.pack_quantized([weight], dtype=dtype, input_bits=ops.FAST_INPUTS)
                rounds = dtype == torch.bfloat16 and name in _BYTE_PRODUCTS
                assert torch.equal(
                    cpu.linear(x.to(dtype), fast), cpu.linear(x.to(dtype), rounded if rounds else packed)
                )
            for layout in (packed, rounded):
                parts = [cpu.linear(part, layout) for size in (1, 2, 5, 62) for part in [x.to(dtype)[:size]]]
                assert all(torch.equal(part, cpu.linear(x.to(dtype), layout)[: len(part)]) for part in parts)
