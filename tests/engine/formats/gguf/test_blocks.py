"""Values of every tensor type equal the `gguf` package's, bit for bit."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from splitfuse.engine.formats.gguf.blocks import floats, quantized
from splitfuse.engine.formats.gguf.tensor_types import TENSOR_TYPES

QUANTIZED = [kind for kind in TENSOR_TYPES.values() if kind.is_quantized]
ROWS = 37


def test_the_types_have_the_packages_numbers_and_sizes() -> None:
    for number, kind in TENSOR_TYPES.items():
        assert Type(number).name == kind.name
        assert gguf.GGML_QUANT_SIZES[Type(number)] == (kind.block_values, kind.block_bytes)


def random_bytes(name: str, num_blocks: int) -> np.ndarray:
    """Return rows of random bytes, except that halves are numbers: a NaN equals nothing."""
    kind = next(kind for kind in QUANTIZED if kind.name == name)
    rng = np.random.default_rng(7)
    blocks = rng.integers(0, 256, (ROWS * num_blocks, kind.block_bytes), dtype=np.uint8)
    halves = {"Q6_K": [208], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2]}.get(name, [0])
    for at in halves:
        scales = rng.normal(0, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales[:, None].view(np.uint8)
    if name == "MXFP4":  # a byte is the exponent of a block; beyond these, products with values overflow
        blocks[:, 0] = rng.integers(27, 227, len(blocks))
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize("num_blocks", [1, 3])
@pytest.mark.parametrize("name", [kind.name for kind in QUANTIZED])
def test_a_quantized_weight_is_exact(name: str, num_blocks: int) -> None:
    rows = random_bytes(name, num_blocks)
    expected = torch.from_numpy(np.array(gguf.dequantize(rows, Type[name])))
    weight = quantized(torch.from_numpy(rows), name)
    assert torch.equal(weight.dequantized(), expected)
    assert weight.values.shape == expected.shape
    lowest = -(2 ** (weight.bits - 1)) if weight.values.dtype == torch.int8 else 0
    assert lowest <= int(weight.values.min()) <= int(weight.values.max()) < lowest + 2**weight.bits
    most = 4 if name == "MXFP4" else 2  # powers of two, of one byte, are floats until the weight is packed
    assert weight.scales.itemsize <= most, "the file's own scales: nothing is multiplied out"
    assert torch.equal(floats(torch.from_numpy(rows), name, torch.float32), expected)
    assert torch.equal(floats(torch.from_numpy(rows), name, torch.bfloat16), expected.to(torch.bfloat16))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_floats_are_what_they_are(name: str) -> None:
    values = np.random.default_rng(7).normal(0, 1, (ROWS, 64)).astype(np.float32)
    rows = gguf.quantize(values, Type[name]).reshape(ROWS, -1).view(np.uint8)
    expected = torch.from_numpy(np.array(gguf.dequantize(gguf.quantize(values, Type[name]), Type[name])))
    assert torch.equal(floats(torch.from_numpy(rows), name, torch.float32), expected.view(ROWS, 64))
