import pytest
import torch
from kernel_cases import DTYPES, assert_near, random_tensor

from splitfuse.kernels import reference, triton_activation


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 100), (2, 1024), (5, 1025), (1, 3072), (0, 16)], ids=str)
def test_silu_mul(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = random_tensor(shape[0], 2 * shape[1], seed=1, dtype=dtype)
    got = triton_activation.silu_mul(gate_up)
    assert got.shape == shape
    assert got.dtype == dtype
    assert_near(got, reference.silu_mul(gate_up.double()))


def test_rows_may_lie_apart() -> None:
    gate_up = random_tensor(4, 200, seed=1, dtype=torch.float16)[:, 10:150]
    assert_near(triton_activation.silu_mul(gate_up), reference.silu_mul(gate_up.double()))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # as on the card: -100 / (1 + inf) = -0
def test_extreme_gates() -> None:
    gate = torch.tensor([-100.0, -10.0, 0.0, 10.0, 100.0])
    gate_up = torch.cat((gate, torch.ones(5)))[None].to(random_tensor(1, seed=0, dtype=torch.float32).device)
    assert_near(triton_activation.silu_mul(gate_up), reference.silu_mul(gate_up.double()))
