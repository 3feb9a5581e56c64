"""Red zones find reads and writes beside an operand, and no others (tests/support/redzones.py)."""

import pytest
import torch
import triton
import triton.language as tl
from kernel_cases import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter: no CUDA device")


@triton.jit
def _add_one(x_ptr, y_ptr, first, last, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, BLOCK)
    inside = (places >= first) & (places < last)
    tl.store(y_ptr + places, tl.load(x_ptr + places, mask=inside, other=0.0) + 1, mask=inside)


def test_a_write_beside_an_operand_is_an_error() -> None:
    x, y = torch.zeros(40), torch.zeros(40)
    _add_one[(1,)](x, y[:30], 0, 30, BLOCK=64)
    assert y.sum() == 30
    with pytest.raises(AssertionError, match="wrote beside an operand"):
        _add_one[(1,)](x, y[20:], 0, 21, BLOCK=64)


def test_a_read_beside_an_operand_is_nan() -> None:
    y = torch.zeros(64)
    _add_one[(1,)](torch.zeros(40), y, 0, 41, BLOCK=64)
    assert y[:40].eq(1).all()
    assert y[40].isnan()
    rows = torch.zeros(4, 16)[:, :8]  # a view of wider rows: what lies between its rows is the test's
    _add_one[(1,)](rows, y, 0, 64, BLOCK=64)
    assert y[:56].eq(1).all()
