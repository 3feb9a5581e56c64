import pytest
import torch
from kernel_cases import DTYPES, assert_near, random_tensor

from splitfuse.kernels import reference
from splitfuse.kernels.cuda import activation

# The GPU computes -100 / (1 + inf) = -0 too.
pytestmark = [pytest.mark.sampled(12), pytest.mark.filterwarnings("ignore:overflow encountered in exp")]
SHAPES = [(1, 1), (3, 100), (2, 1024), (5, 1025), (1, 3072), (0, 16)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["silu_mul", "gelu_tanh_mul"])
def test_gated(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = random_tensor(shape[0], 2 * shape[1], seed=1, dtype=dtype)
    got = getattr(activation, name)(gate_up)
    assert got.shape == shape
    assert got.dtype == dtype
    assert_near(got, getattr(reference, name)(gate_up.double()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "relu", "relu_squared", "tanh"])
def test_plain(kind: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = random_tensor(*shape, seed=1, dtype=dtype) * 3
    got = activation.activation(x, kind)
    assert got.dtype == dtype
    assert_near(got, reference.activation(x.double(), kind))


@pytest.mark.parametrize("cap", [0.5, 30.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softcap(shape: tuple[int, int], cap: float) -> None:
    x = random_tensor(*shape, seed=1, dtype=torch.float32) * 20
    assert_near(activation.softcap(x, cap), reference.softcap(x.double(), cap))


def test_rows_may_lie_apart() -> None:
    gate_up = random_tensor(4, 200, seed=1, dtype=torch.float16)[:, 10:150]
    assert_near(activation.silu_mul(gate_up), reference.silu_mul(gate_up.double()))


def test_extreme_gates() -> None:
    gate = torch.tensor([-100.0, -10.0, 0.0, 10.0, 100.0])
    gate_up = torch.cat((gate, torch.ones(5)))[None].to(random_tensor(1, seed=0, dtype=torch.float32).device)
    for name in ("silu_mul", "gelu_tanh_mul"):
        assert_near(getattr(activation, name)(gate_up), getattr(reference, name)(gate_up.double()))
    for kind in ("gelu_tanh", "gelu", "relu", "relu_squared"):
        assert_near(activation.activation(gate_up, kind), reference.activation(gate_up.double(), kind))
    assert_near(activation.softcap(gate_up, 2.0), reference.softcap(gate_up.double(), 2.0))
