"""Properties of GPTQ that only single numbers show."""

import torch

from splitfuse.engine.formats.checkpoint_format import LinearTensors
from splitfuse.engine.formats.quantization.gptq import GPTQ


def test_a_zero_of_0_borrows_from_the_next_in_version_1() -> None:
    zeros = [0, 3, 15, 0, 0, 7, 8, 1]
    word = sum(zero << (4 * index) for index, zero in enumerate(zeros)) - 0x11111111  # GPTQModel's word
    tensors = {
        "x.qweight": torch.zeros(1, 8, dtype=torch.int32),
        "x.qzeros": torch.tensor([[word]], dtype=torch.int32),
        "x.scales": torch.ones(1, 8, dtype=torch.float16),
    }
    linear = LinearTensors("x", tensors.__contains__, tensors.__getitem__)
    weight = GPTQ(4, None, is_v1=True).weight(linear, (8, 8))
    assert weight is not None
    assert weight.dequantized()[:, 0].tolist() == [-zero for zero in zeros]


def test_a_bias_of_zeros_needs_no_place() -> None:
    tensors = {"a.bias": torch.zeros(3), "b.bias": torch.ones(3)}
    assert [GPTQ(4, None, is_v1=True).ignores(name, tensors.__getitem__) for name in tensors] == [True, False]
