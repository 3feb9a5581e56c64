"""Reference of recurrent layers: transformers' own mixers, and equal bits for any cut, rerun, replay, checkpoint."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from recurrent_cases import LAYERS, Row, gated_delta, in_double, mamba2, randn, short_conv, world

from splitfuse.kernels import ops, recurrence, reference

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_no_cut_changes_a_bit(name: str, dtype: torch.dtype) -> None:
    sequence = world(LAYERS[name], reference, dtype, length=23, seed=3)
    sequence.check_cut(22)
    sequence.check_cut(4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_checkpoints_drafts_and_padding(name: str, dtype: torch.dtype) -> None:
    sequence = world(LAYERS[name], reference, dtype, length=23, seed=4)
    sequence.check_checkpoints(3)
    sequence.check_drafts(first=2)
    sequence.check_padding()


def test_gated_delta_is_transformers() -> None:
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    layer, length = gated_delta(2, 12, 6, 20), 17
    inputs = layer.inputs(length, seed=5)
    got, view = in_double(layer, inputs)
    qkv, gates = (x.float() for x in inputs)
    weight, a_log, dt_bias = layer.weights.values()
    assert weight is not None
    assert a_log is not None
    mixed = theirs.causal_conv1d_fn(qkv.T[None], weight.T, None, activation="silu")[0].T
    q, k, v = (x.unflatten(1, (-1, size)) for x, size in zip(mixed.split([24, 24, 120], 1), (12, 12, 20), strict=True))
    b, a = gates.chunk(2, dim=1)
    expected, state = theirs.torch_recurrent_gated_delta_rule(
        q[None], k[None], v[None], -a_log.exp() * F.softplus(a + dt_bias)[None], b.sigmoid()[None],
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    torch.testing.assert_close(got.float(), expected[0], rtol=1e-4, atol=1e-5)
    assert view.state is not None
    torch.testing.assert_close(view.state[0].float(), state[0], rtol=1e-4, atol=1e-5)


def test_a_decay_for_each_channel_is_transformers() -> None:
    from transformers.models.kimi_linear import modeling_kimi_linear as theirs

    layer, length = gated_delta(3, 12, 3, 20, by_channel=True), 17
    inputs = layer.inputs(length, seed=5)
    got, view = in_double(layer, inputs)
    qkv, gates = (x.float() for x in inputs)
    weight, a_log, dt_bias = (w for w in layer.weights.values() if w is not None)
    mixed = theirs.causal_conv1d_fn(qkv.T[None], weight.T, None, activation="silu")[0].T
    q, k, v = (x.unflatten(1, (3, -1)) for x in mixed.split([36, 36, 60], 1))
    b, a = gates.split([3, 36], dim=1)
    decays = -a_log.exp()[:, None] * F.softplus(a + dt_bias).unflatten(1, (3, 12))
    expected, state = theirs.recurrent_kimi_delta_attention(
        q[None], k[None], v[None], decays[None], b.sigmoid()[None], None, True, use_qk_l2norm_in_kernel=True
    )
    torch.testing.assert_close(got.float(), expected[0], rtol=1e-4, atol=1e-5)
    assert view.state is not None
    torch.testing.assert_close(view.state[0].float(), state[0], rtol=1e-4, atol=1e-5)


def test_tiled_heads_are_a_permutation() -> None:
    plain, tiled = gated_delta(3, 4, 6, 5), gated_delta(3, 4, 6, 5, tiles_heads=True)
    order = torch.arange(6).view(3, 2).T.flatten()  # tiled head i is plain head order[i]
    columns = torch.cat((torch.arange(24), 24 + torch.arange(30).view(6, 5)[order].flatten()))
    weight, a_log, dt_bias = (w for w in plain.weights.values() if w is not None)
    weights = {"weight": weight[:, columns], "a_log": a_log[order], "dt_bias": dt_bias[order]}
    qkv, gates = plain.inputs(9, seed=7)
    permuted = [qkv[:, columns], torch.cat([part[:, order] for part in gates.chunk(2, dim=1)], dim=1)]
    expected, _ = in_double(plain, [qkv, gates])
    got, _ = in_double(replace(tiled, weights=weights), permuted)
    torch.testing.assert_close(got, expected[:, order])


def test_short_conv_is_lfm2s() -> None:
    from transformers import Lfm2Config
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

    config = Lfm2Config(hidden_size=24, conv_L_cache=4, conv_bias=True, layer_types=["conv"], num_hidden_layers=1)
    theirs = Lfm2ShortConv(config, 0).double()
    x = randn(9, 24, seed=1).double()
    with torch.no_grad():
        expected = theirs(x[None])[0]
        layer = short_conv(24, 4)
        bias = theirs.conv.bias
        assert bias is not None
        view = layer.view(torch.float64)
        layer = replace(layer, weights={"weight": theirs.conv.weight.squeeze(1).T, "bias": bias})
        got = layer.run(reference, [theirs.in_proj(x)], view, [Row(9, -1, 0)])
        torch.testing.assert_close(theirs.out_proj(got), expected)


def mixer(family: str) -> Any:
    """A mixer of transformers with random weights."""
    import transformers

    sizes = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "vocab_size": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    if family == "mamba2":
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

        config: Any = transformers.Mamba2Config(
            hidden_size=24, num_hidden_layers=2, num_heads=6, head_dim=8, n_groups=2, state_size=12, chunk_size=4,
            vocab_size=8,
        )  # fmt: skip
        return Mamba2Mixer(config, 0)
    mamba: dict[str, Any] = {
        "mamba_n_heads": 6, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_chunk_size": 4,
        "intermediate_size": 32, "mamba_expand": 2,
    }  # fmt: skip
    if family == "bamba":
        from transformers.models.bamba.modeling_bamba import BambaMixer

        return BambaMixer(transformers.BambaConfig(**sizes, **mamba), 0)
    from transformers.models.granitemoehybrid.modeling_granitemoehybrid import GraniteMoeHybridMambaLayer

    return GraniteMoeHybridMambaLayer(transformers.GraniteMoeHybridConfig(**sizes, **mamba), 0)


@pytest.mark.parametrize("family", ["mamba2", "bamba", "granitemoehybrid"])
def test_mamba2_is_transformers(family: str) -> None:
    theirs = mixer(family)
    for i, parameter in enumerate(theirs.parameters()):
        parameter.data = randn(*parameter.shape, seed=i) * 0.3
    theirs = theirs.float()
    x = randn(11, 24, seed=9)
    layer = mamba2(6, 8, 2, 12)
    with torch.no_grad():
        expected = theirs(x[None])[0]
        gate, xbc, dt = theirs.in_proj(x).split([48, 48 + 48, 6], dim=1)
        own = (theirs.conv1d.weight.squeeze(1).T, theirs.conv1d.bias, theirs.A_log, theirs.D, theirs.dt_bias)
        layer = replace(layer, weights=dict(zip(layer.weights, own, strict=True)))
        y = layer.run(reference, [xbc, dt], layer.view(torch.float32), [Row(11, -1, 0)])
        normed = ops.gated_rms_norm(
            y.flatten(1), gate, theirs.norm.weight, eps=theirs.norm.variance_epsilon, group_size=theirs.norm.group_size,
            norm_before_gate=False,
        )  # fmt: skip
        torch.testing.assert_close(theirs.out_proj(normed), expected, rtol=1e-4, atol=1e-4)


def test_norms_with_a_gate_are_transformers() -> None:
    from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1RMSNormGated
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

    x, gate, weight = randn(5, 24, seed=1), randn(5, 24, seed=2), randn(24, seed=3)
    for before in (True, False):
        theirs = FalconH1RMSNormGated(24, n_groups=3, norm_before_gate=before)
        theirs.weight.data = weight
        got = ops.gated_rms_norm(x, gate, weight, eps=1e-6, group_size=8, norm_before_gate=before)
        torch.testing.assert_close(got, theirs(x, gate))
    shared = Qwen3NextRMSNormGated(8)
    shared.weight.data = weight[:8]
    got = ops.gated_rms_norm(x, gate, weight[:8], eps=1e-6, group_size=8, norm_before_gate=True)
    torch.testing.assert_close(got.view(-1, 8), shared(x.view(-1, 8), gate.view(-1, 8)))
    torch.testing.assert_close(ops.gate_mul(x, gate, "sigmoid"), x * torch.sigmoid(gate))
    torch.testing.assert_close(ops.gate_mul(x, gate, "silu"), x * F.silu(gate))
    torch.testing.assert_close(ops.gate_mul(x, gate, "gelu_tanh"), x * F.gelu(gate, approximate="tanh"))


@pytest.mark.parametrize("name", LAYERS)
def test_meta_tensors_give_shapes(name: str) -> None:
    layer = LAYERS[name]
    inputs = layer.inputs(7, seed=0)
    shape = layer.run(recurrence, inputs, layer.view(torch.float32), [Row(7, -1, 0)]).shape
    view = ops.StateView(*(None if part is None else part.to("meta") for part in layer.view(torch.float32)))
    assert layer.run(ops, [x.to("meta") for x in inputs], view, [Row(7, -1, 0)]).shape == shape
