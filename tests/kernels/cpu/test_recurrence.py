"""Native recurrent layers: the reference in float64, and equal bits for any cut, neighbours, threads, replay, plan."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from patched_library import patched_ops
from recurrent_cases import LAYERS, Layer, Row, batch, gated_delta, in_double, mamba2, randn, short_conv, world
from torch import Tensor

from splitfuse.kernels import ops, reference
from splitfuse.kernels.cpu import backend as cpu
from splitfuse.kernels.cpu import build, compilation, recurrence

pytestmark = pytest.mark.skipif(build.library() is None, reason="needs a C++ compiler for the native CPU library")

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 2e-2}
NATIVE = LAYERS | {
    "gated_delta of Qwen3.5": gated_delta(2, 128, 4, 128),
    "gated_delta of Kimi Linear": gated_delta(2, 128, 2, 128, by_channel=True),
    "mamba2 of Granite 4": mamba2(24, 64, 1, 128),  # more blocks than an item has
    "mamba2 of Nemotron-H": mamba2(4, 80, 2, 128),
    "short_conv of LFM2": short_conv(1024),
}

OPS = ("short_conv", "gated_delta", "mamba2", "gated_rms_norm", "gate_mul")


@pytest.fixture(autouse=True)
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only native ops run, never the reference in their place."""
    monkeypatch.setattr(recurrence, "reference", Mock(**{f"{op}.side_effect": AssertionError for op in OPS}))


@pytest.fixture(params=[1, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
    scale = float(expected.abs().max())
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NATIVE)
def test_the_reference_in_float64(name: str, dtype: torch.dtype) -> None:
    layer = NATIVE[name]
    sequence = world(layer, cpu, dtype, length=70, seed=1)
    expected, view = in_double(layer, sequence.inputs)
    close(sequence.whole, expected, dtype)
    assert torch.equal(sequence.view.conv[0], view.conv[0].to(dtype))
    if view.state is not None:
        close(sequence.last[1], view.state[0], torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NATIVE)
def test_no_cut_changes_a_bit(name: str, dtype: torch.dtype, num_threads: int) -> None:
    sequence = world(NATIVE[name], cpu, dtype, length=70, seed=2)
    for num_cuts in (69, 10, 3):
        sequence.check_cut(num_cuts)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NATIVE)
def test_checkpoints_drafts_and_padding(name: str, dtype: torch.dtype, num_threads: int) -> None:
    for seed in range(3):
        sequence = world(NATIVE[name], cpu, dtype, length=70, seed=seed)
        sequence.check_checkpoints(5)
        sequence.check_drafts(first=20)
        sequence.check_padding()


@pytest.mark.parametrize("name", NATIVE)
def test_threads_change_no_bit(name: str) -> None:
    before = torch.get_num_threads()
    runs = []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        runs.append(world(NATIVE[name], cpu, torch.bfloat16, length=50, seed=3).whole)
    torch.set_num_threads(before)
    assert all(torch.equal(runs[0], other) for other in runs[1:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 48, 100, 256])
def test_gates(width: int, dtype: torch.dtype) -> None:
    x, wide = (randn(5, size, seed=seed).to(dtype) for size, seed in ((2 * width, 1), (2 * width + 6, 2)))
    gate = wide[:, 6:]
    for norm_before_gate, is_sigmoid in ((True, False), (False, False), (True, True)):
        for weight in (randn(width, seed=3), randn(2 * width, seed=4).to(dtype)):
            gating = {"norm_before_gate": norm_before_gate, "is_sigmoid": is_sigmoid}
            sizes = {"eps": 1e-5, "group_size": width, **gating}
            expected = reference.gated_rms_norm(x.double(), gate.double(), weight, **sizes)  # type: ignore[arg-type]
            close(cpu.gated_rms_norm(x, gate, weight, **sizes), expected, dtype)  # type: ignore[arg-type]
    for kind in ("sigmoid", "silu", "gelu_tanh"):
        close(cpu.gate_mul(x, gate, kind), reference.gate_mul(x.double(), gate.double(), kind), dtype)
        heads = cpu.gate_mul(x.view(5, 2, width), gate.unflatten(1, (2, width)), kind)
        assert torch.equal(heads.flatten(1), cpu.gate_mul(x, gate, kind))


def test_gates_and_decays_at_the_ends() -> None:
    """Gates far beyond what a model has: no NaN, and the limits of the formulas."""
    layer = gated_delta(1, 16, 1, 16)
    inputs = [x[:6].contiguous() for x in layer.inputs(6, seed=1)]
    inputs[1][:] = torch.tensor(
        [[-200.0, -200.0], [200.0, 200.0], [0.0, -90.0], [90.0, 30.0], [-30.0, 0.0], [1.0, 88.0]]
    )
    view = layer.view(torch.float32)
    out = layer.run(cpu, inputs, view, [Row(6, -1, 0)])
    expected, wide = in_double(layer, inputs)
    close(out, expected, torch.float32)
    assert wide.state is not None
    assert view.state is not None
    close(view.state[0], wide.state[0], torch.float32)


@pytest.mark.parametrize(
    "layer", [LAYERS[name] for name in ("short_conv", "gated_delta", "gated_delta by channel", "mamba2")]
)
def test_plans(layer: Layer) -> None:
    """A plan of projections, a recurrence and gates has the ops' bits, for other rows and places than were recorded."""
    width = 64
    packed = [ops.pack_linear(randn(size, width, seed=i) * width**-0.5) for i, size in enumerate(layer.widths)]
    view = layer.view(torch.float32)
    num_outputs = int(torch.tensor(layer.state_shape)[::2].prod()) if layer.state_shape else layer.num_channels
    norm, gate = torch.ones(num_outputs), ops.pack_linear(randn(num_outputs, width, seed=9))

    def forward(x: Tensor, arrays: ops.StepArrays) -> Tensor:
        assert arrays.states is not None
        raw = [ops.linear(x, weight) for weight in packed]
        y = getattr(ops, layer.op)(*raw, *layer.weights.values(), view, arrays.ragged, arrays.states, **layer.sizes)
        z, y = ops.linear(x, gate), y.view(len(y), num_outputs)
        y = ops.gated_rms_norm(y, z, norm, eps=1e-5, group_size=num_outputs // 2, norm_before_gate=True)
        return ops.gate_mul(ops.gate_mul(y, z, "sigmoid"), z, "silu").index_select(0, arrays.logits_indices)

    plan = ops.record(forward, width=width, dtype=torch.float32, device=torch.device("cpu"))
    steps = [
        [Row(9, -1, 0), Row(1, -1, 1, checkpoints=((1, 8),))],
        [Row(1, 0, 2), Row(4, 1, 3, num_drafts=3)],
        [Row(3, 3, 4, num_replayed=2), Row(1, 2, 5), Row(20, -1, 6, checkpoints=((3, 9), (17, 10)))],
        [Row(1, 5, 7)],
    ]
    for rows in steps:
        num_tokens = sum(row.num_tokens for row in rows)
        x, nothing = randn(num_tokens, width, seed=num_tokens), torch.zeros(num_tokens, dtype=torch.int64)
        ragged, states = batch(rows, x.device)
        arrays = ops.StepArrays(nothing, nothing, ragged, torch.arange(num_tokens), states)
        outputs, kept = [], []
        for run in (plan.run, forward):
            outputs.append(run(x, arrays))
            kept.append([part.nan_to_num(7.0).clone() for part in view if part is not None])
        assert torch.equal(*outputs)
        assert all(map(torch.equal, *kept))


@pytest.mark.parametrize("arch", ["x86-64-v3", pytest.param("skylake-avx512", marks=pytest.mark.thorough)])
def test_other_classes_of_processors_have_equal_bits(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = {"x86-64-v3": "avx2", "skylake-avx512": "avx512bw"}[arch]
    if needed not in compilation.cpu_features().split():
        pytest.skip(f"needs a processor with {needed}")
    odd = ("gated_delta of odd sizes", "gated_delta by channel")
    layers = ("short_conv", *odd, "gated_delta of Qwen3.5", "mamba2", "mamba2 of Granite 4")
    native = [world(NATIVE[name], cpu, torch.bfloat16, length=40, seed=8) for name in layers]
    stems = [source.stem for source in compilation.FOLDER.glob("recurrence*.cpp")]
    other = patched_ops(tmp_path, stems, flags=["-O1", f"-march={arch}"])
    monkeypatch.setattr(build, "library", lambda: other)
    for name, expected in zip(layers, native, strict=True):
        got = world(NATIVE[name], cpu, torch.bfloat16, length=40, seed=8)
        got.check_cut(30)
        assert torch.equal(got.whole, expected.whole)
        assert all(map(torch.equal, got.last, expected.last))
