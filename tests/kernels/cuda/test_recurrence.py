"""Triton kernels of recurrent layers and gates: the reference in float64, and equal bits for any cut and replay."""

import pytest
import torch
from kernel_cases import DEVICE, DTYPES, assert_near, random_tensor
from recurrent_cases import LAYERS, Layer, gated_delta, in_double, mamba2, short_conv, world

from splitfuse.kernels import reference
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda import recurrent_gates as gates

# The GPU computes -100 / (1 + inf) = -0 too.
pytestmark = [pytest.mark.sampled(4), pytest.mark.filterwarnings("ignore:overflow encountered in exp")]
TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 2e-2, torch.float32: 5e-5}
SMALL = {
    "short_conv": short_conv(24, has_bias=True),
    "gated_delta": gated_delta(1, 8, 2, 40, 2),
    "gated_delta by channel": gated_delta(2, 6, 2, 20, 2, by_channel=True),
    "mamba2": mamba2(2, 12, 1, 8, 2),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_the_reference_in_float64(name: str, dtype: torch.dtype) -> None:
    sequence = world(LAYERS[name], cuda, dtype, length=6, seed=1, device=DEVICE)
    expected, view = in_double(LAYERS[name], sequence.inputs)
    scale = max(1.0, float(expected.abs().max()))
    assert_near(sequence.whole.cpu() / scale, expected / scale, tolerance=TOLERANCES[dtype])
    if view.state is not None:
        assert_near(sequence.last[1].cpu(), view.state[0], tolerance=5e-4)


@pytest.mark.parametrize("layer", SMALL.values(), ids=SMALL)
def test_no_cut_changes_a_bit(layer: Layer) -> None:
    sequence = world(layer, cuda, torch.float16, length=7, seed=2, device=DEVICE)
    sequence.check_cut(3)
    sequence.check_padding()


@pytest.mark.parametrize("layer", SMALL.values(), ids=SMALL)
def test_checkpoints_and_drafts(layer: Layer) -> None:
    sequence = world(layer, cuda, torch.float32, length=7, seed=5, device=DEVICE)
    sequence.check_checkpoints(1)
    sequence.check_drafts(first=2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group_size", [8, 100, 256])
def test_gates(group_size: int, dtype: torch.dtype) -> None:
    x = random_tensor(3, 2 * group_size, seed=1, dtype=dtype)
    gate = random_tensor(3, 2 * group_size + 5, seed=2, dtype=dtype)[:, 5:]
    for norm_before_gate, is_sigmoid in ((True, False), (False, False), (True, True)):
        gating = {"norm_before_gate": norm_before_gate, "is_sigmoid": is_sigmoid}
        for weight in (
            random_tensor(group_size, seed=3, dtype=torch.float32),
            random_tensor(2 * group_size, seed=4, dtype=dtype),
        ):
            got = gates.gated_rms_norm(x, gate, weight, eps=1e-5, group_size=group_size, **gating)
            expected = reference.gated_rms_norm(
                x.double(), gate.double(), weight, eps=1e-5, group_size=group_size, **gating
            )
            assert_near(got, expected, tolerance=TOLERANCES[dtype])
    for kind in ("sigmoid", "silu", "gelu_tanh"):
        heads = x.unflatten(1, (2, group_size)), gate.unflatten(1, (2, group_size))
        expected = reference.gate_mul(*(part.double() for part in heads), kind)
        assert_near(gates.gate_mul(*heads, kind), expected)
