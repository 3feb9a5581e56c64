"""Values of every tensor type equal the `gguf` package's, bit for bit."""

import ctypes
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from splitfuse.engine import gguf_dequantize
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.formats.gguf.blocks import _GRIDS, _grid, floats, quantized
from splitfuse.engine.formats.gguf.tensor_types import TENSOR_TYPES, TYPES_BY_NAME
from splitfuse.kernels.cpu import build

NOT_IN_THE_PACKAGE = ("Q1_0", "Q2_0", "Q2_0_G128")  # its `dequantize` refuses these
PACKAGED = [name for name in TYPES_BY_NAME if name not in NOT_IN_THE_PACKAGE]
TENSOR_TYPES_BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}
ROWS = 37
# Of the peers that the benchmarks install.
LLAMA_CPP = next((Path.home() / ".cache/splitfuse/peers/llamacpp").rglob("libggml-base.so"), None)


@pytest.fixture(autouse=True, params=["library", "torch"])
def unpacking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpack by the native library, where there is a compiler, and by torch."""
    if request.param == "library" and build.library() is None:
        pytest.skip("needs a C++ compiler")
    monkeypatch.setattr(build, "loaded_library", build.library if request.param == "library" else lambda: None)


def test_the_types_have_the_packages_numbers_and_sizes() -> None:
    for number, kind in TENSOR_TYPES.items():
        if kind.name != "Q2_0":  # newer than the package
            assert Type(number).name == kind.name
            assert gguf.GGML_QUANT_SIZES[Type(number)] == (kind.block_values, kind.block_bytes)
    decoded = {kind.name for kind in gguf.quants._type_traits}
    assert decoded <= TYPES_BY_NAME.keys()


def random_rows(name: str, num_rows: int, num_blocks: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (num_rows, num_blocks * TYPES_BY_NAME[name].block_bytes), dtype=np.uint8)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("num_blocks", [200, pytest.param(10_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", PACKAGED)
def test_random_blocks_are_dequantized_to_the_bit(name: str, num_blocks: int) -> None:
    kind, raw = TYPES_BY_NAME[name], random_rows(name, num_blocks, 1)
    expected = np.array(gguf.dequantize(raw, Type[name]), dtype=np.float32).ravel()
    got = gguf_dequantize(raw.tobytes(), name, num_blocks * kind.block_values)
    assert got.dtype == np.float32
    is_number = ~np.isnan(expected)  # a NaN's other bits are the processor's choice
    assert np.array_equal(np.isnan(got), ~is_number)
    assert np.array_equal(got.view(np.uint32)[is_number], expected.view(np.uint32)[is_number])


@pytest.mark.parametrize(
    ("name", "codes", "values"),
    [
        ("Q1_0", [0b00000101, *[0] * 15], [1, -1, 1, *[-1] * 125]),
        ("Q2_0", [0b11100100, *[0b01010101] * 15], [-1, 0, 1, 2, *[0] * 60]),
        ("Q2_0_G128", [0b11100100, *[0b01010101] * 31], [-1, 0, 1, 2, *[0] * 124]),
    ],
)
def test_types_without_a_reference_are_as_ggml_describes_them(name: str, codes: list[int], values: list[int]) -> None:
    raw = np.float16(0.375).tobytes() + bytes(codes)
    assert gguf_dequantize(raw, name, len(values)).tolist() == [0.375 * value for value in values]


@pytest.mark.skipif(LLAMA_CPP is None, reason="needs llama.cpp's library (pip install llama-cpp-python, a peer)")
@pytest.mark.parametrize("num_blocks", [200, pytest.param(10_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", [name for name, kind in TENSOR_TYPES_BY_NAME.items() if kind.is_quantized])
def test_blocks_equal_llama_cpps_to_the_bit(name: str, num_blocks: int) -> None:
    """Types that the package does not decode have no other reference."""
    convert = getattr(ctypes.CDLL(str(LLAMA_CPP)), f"dequantize_row_{name.lower().replace('_k', '_K')}")
    convert.argtypes, convert.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64), None
    raw = random_rows(name, num_blocks, 1)
    expected = np.empty(num_blocks * TYPES_BY_NAME[name].block_values, dtype=np.float32)
    convert(raw.ctypes.data, expected.ctypes.data, len(expected))
    got, is_number = gguf_dequantize(raw.tobytes(), name, len(expected)), ~np.isnan(expected)
    assert np.array_equal(np.isnan(got), ~is_number)
    assert np.array_equal(got.view(np.uint32)[is_number], expected.view(np.uint32)[is_number])


def test_what_cannot_be_dequantized_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'Q8_K' is not known; known: F32, .*IQ4_XS"):
        gguf_dequantize(b"", "Q8_K", 0)
    for num_values in (256, -32, 33):
        with pytest.raises(
            ConfigError, match=r"18 bytes are not -?\d+ values of Q4_0, whose blocks have 32 values in 18"
        ):
            gguf_dequantize(bytes(18), "Q4_0", num_values)
    assert gguf_dequantize(b"", "Q4_0", 0).shape == (0,)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("num_blocks", [1, 3])
@pytest.mark.parametrize("name", [name for name, kind in TYPES_BY_NAME.items() if kind.is_quantized])
def test_a_quantized_weight_is_exact(name: str, num_blocks: int) -> None:
    rows = random_rows(name, ROWS, num_blocks)
    num_values = num_blocks * TYPES_BY_NAME[name].block_values
    expected = torch.from_numpy(gguf_dequantize(rows.tobytes(), name, ROWS * num_values)).view(ROWS, num_values)
    weight = quantized(torch.from_numpy(rows), name)
    for same in (weight, weight.without_codebook()):
        torch.testing.assert_close(same.dequantized(), expected, rtol=0, atol=0, equal_nan=True)
    assert weight.values.shape == expected.shape
    kind = TYPES_BY_NAME[name]
    held = kind.bits_on_cpu or 8 * kind.block_bytes / kind.block_values
    assert weight.packed_bits(is_gpu=False) == held
    lowest = -(2 ** (weight.bits - 1)) if weight.values.dtype == torch.int8 else 0
    assert lowest <= int(weight.values.min()) <= int(weight.values.max()) < lowest + 2**weight.bits
    most = 4 if name == "MXFP4" else 2  # powers of two, of one byte, are floats until the weight is packed
    assert weight.scales.itemsize <= most, "the file's own scales: nothing is multiplied out"
    for dtype in (torch.float32, torch.bfloat16):
        got = floats(torch.from_numpy(rows), name, dtype)
        torch.testing.assert_close(got, expected.to(dtype), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", _GRIDS)
def test_the_grids_are_the_packages(name: str) -> None:
    source = getattr(gguf.quants, "IQ1_S" if name == "IQ1" else name)
    source.init_grid()
    sizes = np.array(source.grid_map, dtype=np.float32)
    assert np.array_equal(sizes[_grid(name).numpy()], source.grid.reshape(source.grid_shape))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_floats_are_what_they_are(name: str) -> None:
    values = np.random.default_rng(7).normal(0, 1, (ROWS, 64)).astype(np.float32)
    rows = gguf.quantize(values, Type[name]).reshape(ROWS, -1).view(np.uint8)
    expected = torch.from_numpy(np.array(gguf.dequantize(gguf.quantize(values, Type[name]), Type[name])))
    assert torch.equal(floats(torch.from_numpy(rows), name, torch.float32), expected.view(ROWS, 64))
