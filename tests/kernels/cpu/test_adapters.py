"""Products of adapters by the native library: near float64, and equal to the bit alone and in company."""

from random import Random

import pytest
import torch
from adapter_cases import AdapterCase, expected_sums, random_case
from torch import Tensor

from splitfuse.kernels import ops
from splitfuse.kernels.cpu import build

pytestmark = pytest.mark.skipif(build.library() is None, reason="there is no native library")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(8))
def test_random_adapters_alone_and_in_company(seed: int, dtype: torch.dtype) -> None:
    rng = Random(seed)
    case = random_case(rng, dtype, device="cpu", packs=True)
    out = case.out.clone()
    ops.add_adapters(out, case.x, case.tiles(), case.place)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(out.double(), expected_sums(case), rtol=tolerance, atol=tolerance)
    rows = range(len(case.x))
    for part in ([row] for row in rows):
        _assert_equal_rows(case, out, part)
    for _ in range(5):
        _assert_equal_rows(case, out, rng.sample(rows, rng.randint(1, len(rows))))
    without = [row for row in rows if case.owners[row] is None]
    assert torch.equal(out[without], case.out[without])


def _assert_equal_rows(case: AdapterCase, together: Tensor, rows: list[int]) -> None:
    out = case.out.clone()
    ops.add_adapters(out, case.x, case.tiles(rows), case.place)
    assert torch.equal(out[rows], together[rows])
