"""Products of adapters against float64: any ranks and parts, rows of no adapter untouched."""

from random import Random

import pytest
import torch
from adapter_cases import AdapterCase, expected_sums, random_case
from kernel_cases import DEVICE, DOT_DTYPES, assert_near

from splitfuse.kernels.cuda.linear.adapters import add_adapters

pytestmark = pytest.mark.sampled(12)


@pytest.mark.parametrize("dtype", DOT_DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_random_adapters(seed: int, dtype: torch.dtype) -> None:
    case: AdapterCase = random_case(Random(seed), dtype, device=DEVICE, packs=False)
    out = case.out.clone()
    add_adapters(out, case.x, case.tiles(), case.place)
    assert_near(out, expected_sums(case), tolerance=2e-3 if dtype != torch.float32 else 1e-4)
    without = [row for row, owner in enumerate(case.owners) if owner is None]
    assert torch.equal(out[without], case.out[without])
