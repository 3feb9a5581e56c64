"""Groups, orders and blocks, compared with plain loops."""

import pytest
import torch

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.formats.quantization.affine import act_order, block_scales, num_groups, unpack


@pytest.mark.parametrize(("shape", "block"), [((6, 8), (2, 4)), ((5, 6), (2, 4)), ((3, 10), (9, 4)), ((4, 7), (1, 99))])
def test_block_scales_are_each_blocks_own(shape: tuple[int, int], block: tuple[int, int]) -> None:
    scales = torch.rand(-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    spread = block_scales(scales, shape, block)
    size = shape[1] // len(spread)
    assert size * len(spread) == shape[1]
    for n in range(shape[0]):
        for k in range(shape[1]):
            assert spread[k // size, n] == scales[n // block[0], k // block[1]]


def test_the_lowest_bits_come_first() -> None:
    words = torch.tensor([[0x76543210, -1]], dtype=torch.int32)
    assert unpack(words, 4).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, *[15] * 8]]
    assert unpack(words, 8).tolist() == [[0x10, 0x32, 0x54, 0x76, *[255] * 4]]


def test_an_order_is_only_where_groups_are_mixed() -> None:
    assert act_order(torch.tensor([0, 0, 1, 1]), 2, name="x") is None
    assert act_order(torch.zeros(4, dtype=torch.int32), 2, name="x") is None
    order = act_order(torch.tensor([1, 0, 1, 0]), 2, name="x")
    assert order is not None
    assert order.tolist() == [1, 3, 0, 2]
    for wrong in ([0, 0, 0, 1], [0, 2, 0, 2], [-1, 0, 0, 1]):
        with pytest.raises(ConfigError, match="x: g_idx does not give 2 groups"):
            act_order(torch.tensor(wrong), 2, name="x")


def test_groups_divide_the_inputs() -> None:
    assert [num_groups(96, size, name="x") for size in (None, 32, 128)] == [1, 3, 1]
    with pytest.raises(ConfigError, match="x: groups of 64 do not divide 96 inputs"):
        num_groups(96, 64, name="x")
