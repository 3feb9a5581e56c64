"""The oracle against independent formulas, so that it is more than an echo of the kernels."""

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import AttentionCase
from quantized_cases import FORMS, random_weight

from splitfuse.kernels import ops, reference
from splitfuse.kernels.quantize import round_rows


def _random(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64).to(dtype)


def test_rms_norm_is_torchs() -> None:
    x, weight = _random(5, 48), _random(48)
    torch.testing.assert_close(reference.rms_norm(x, weight, eps=1e-5), F.rms_norm(x, (48,), weight, 1e-5))


def test_low_precision_is_computed_in_float32() -> None:
    x, weight = _random(5, 48, dtype=torch.bfloat16), _random(48, dtype=torch.bfloat16)
    expected = reference.rms_norm(x.float(), weight.float(), eps=1e-5).bfloat16()
    assert torch.equal(reference.rms_norm(x, weight, eps=1e-5), expected)


def test_add_rms_norm_normalises_the_rounded_sum() -> None:
    x, residual, weight = (_random(*shape, dtype=torch.bfloat16) for shape in ((4, 32), (4, 32), (32,)))
    normed, total = reference.add_rms_norm(x, residual * 1.7, weight, eps=1e-6)
    assert torch.equal(total, x + residual * 1.7)
    assert torch.equal(normed, reference.rms_norm(total, weight, eps=1e-6))


def test_layer_norm_is_torchs() -> None:
    x, residual, weight, bias = _random(5, 48) + 3, _random(5, 48) * 2, _random(48), _random(48) + 1
    expected = F.layer_norm(x, (48,), weight, bias, 1e-5)
    torch.testing.assert_close(reference.layer_norm(x, weight, bias, eps=1e-5), expected)
    torch.testing.assert_close(reference.layer_norm(x, weight, None, eps=1e-5), expected - bias)
    normed, total = reference.add_layer_norm(x, residual, weight, bias, eps=1e-5)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normed, F.layer_norm(total, (48,), weight, bias, 1e-5))


def test_activations_are_torchs() -> None:
    x = _random(4, 20) * 3
    torch.testing.assert_close(reference.activation(x, "gelu"), F.gelu(x))
    torch.testing.assert_close(reference.activation(x, "gelu_tanh"), F.gelu(x, approximate="tanh"))
    torch.testing.assert_close(reference.gelu_tanh_mul(x), F.gelu(x[:, :10], approximate="tanh") * x[:, 10:])
    torch.testing.assert_close(reference.activation(x, "relu"), F.relu(x))
    torch.testing.assert_close(reference.activation(x, "relu_squared"), F.relu(x) ** 2)
    torch.testing.assert_close(reference.softcap(x, 2.0), 2 * torch.tanh(x / 2))


def test_silu_mul_multiplies_the_halves() -> None:
    gate, up = _random(3, 10), _random(3, 10) + 1
    expected = gate * torch.sigmoid(gate) * up
    torch.testing.assert_close(reference.silu_mul(torch.cat((gate, up), dim=-1)), expected)


@pytest.mark.parametrize("rotary_dim", [16, 8, 0])
def test_rope_is_a_complex_product(rotary_dim: int) -> None:
    q, k, v = _random(6, 4, 16), _random(6, 2, 16), _random(6, 2, 16)
    positions = torch.tensor([0, 1, 2, 7, 30, 31])
    angles = torch.arange(32)[:, None] * 10.0 ** -torch.arange(rotary_dim // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    k_cache, v_cache = torch.zeros(2, 2, 4, 16, dtype=torch.float64), torch.zeros(2, 2, 4, 16, dtype=torch.float64)
    slots = torch.tensor([4, -1, 0, 1, 7, 2])

    rope, cache = ops.RopeArgs(cos_sin), ops.CacheView(k_cache, v_cache)
    rotated = reference.rope_and_cache(q, k, v, positions, slots, rope, cache)

    half = rotary_dim // 2
    turn = torch.polar(torch.ones(6, 1, half, dtype=torch.float64), angles[positions][:, None].double())
    product = torch.complex(q[..., :half], q[..., half:rotary_dim]) * turn
    expected = torch.cat((product.real, product.imag, q[..., rotary_dim:]), dim=-1)
    torch.testing.assert_close(rotated, expected, rtol=1e-6, atol=1e-6)  # the angles are float32
    assert torch.equal(v_cache[1, :, 0], v[0])
    assert torch.equal(v_cache[0, :, 2], v[5])
    assert torch.equal(k_cache[0, :, 0, rotary_dim:], k[2, :, rotary_dim:])
    untouched = [(0, 3), (1, 1), (1, 2)]
    assert all(not cache[block, :, offset].any() for cache in (k_cache, v_cache) for block, offset in untouched)


def test_rope_normalises_heads_first() -> None:
    q, weight = _random(3, 2, 8), _random(8)
    cos_sin = torch.cat((torch.ones(1, 4), torch.zeros(1, 4)), dim=-1)  # no rotation
    cache = torch.zeros(1, 2, 16, 8, dtype=torch.float64)
    zeros, slots = torch.zeros(3, dtype=torch.int64), torch.tensor([0, 1, -1])
    rope, view = ops.RopeArgs(cos_sin, q_norm=weight, k_norm=weight), ops.CacheView(cache, cache.clone())
    got = reference.rope_and_cache(q, q, q, zeros, slots, rope, view)
    torch.testing.assert_close(got, F.rms_norm(q, (8,), weight, 1e-6))
    torch.testing.assert_close(cache[0, :, 1], F.rms_norm(q[1], (8,), weight, 1e-6))


def test_a_soft_cap_changes_the_scores() -> None:
    case = AttentionCase((3,), (0,), group=1, num_kv_heads=1, head_dim=8, softcap=0.4, dtype=torch.float64)
    q, cache, ragged = case.build()
    got = reference.paged_attention(q, cache, ragged, case.args)
    block = int(ragged.block_tables[0, 0])
    keys, values = cache.keys[block, 0, :3], cache.values[block, 0, :3]
    scores = 0.4 * torch.tanh(q[:, 0] @ keys.T * 8**-0.5 / 0.4)
    mask = torch.ones(3, 3, dtype=torch.bool, device=q.device).tril()
    torch.testing.assert_close(got[:, 0], scores.masked_fill(~mask, -torch.inf).softmax(-1) @ values)


@pytest.mark.parametrize("window", [0, 5])
def test_paged_attention_is_attention_over_the_gathered_cache(window: int) -> None:
    case = AttentionCase((1, 1, 4, 9), (0, 20, 3, 0), group=3, sliding_window=window, dtype=torch.float64)
    q, cache, ragged = case.build()
    got = reference.paged_attention(q, cache, ragged, case.args)
    assert torch.isfinite(got).all()
    for row, (length, context) in enumerate(zip(case.query_lens, case.context_lens, strict=True)):
        start, end = ragged.query_start_loc[row : row + 2].tolist()
        oldest = max(0, context + 1 - window) if window else 0
        positions = torch.arange(oldest, context + length, device=q.device)
        slots = ragged.block_tables[row, positions // 16].long() * 16 + positions % 16
        keys, values = (part.transpose(1, 2).flatten(0, 1)[slots] for part in cache[:2])
        queries = torch.arange(context, context + length, device=q.device)[:, None]
        visible = (positions <= queries) & ((positions > queries - window) if window else True)
        expected = F.scaled_dot_product_attention(
            q[start:end].transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), visible, enable_gqa=True
        )
        torch.testing.assert_close(got[start:end], expected.transpose(0, 1))


def test_copy_blocks_copies_in_every_cache() -> None:
    caches = [_random(5, 2, 16, 4), _random(5, 2, 16, 4) + 1]
    before = [cache.clone() for cache in caches]
    reference.copy_blocks(caches, torch.tensor([0, 3]), torch.tensor([4, 1]))
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(cache, old[[0, 3, 2, 3, 0]])


def test_linear() -> None:
    x, weight, bias = _random(3, 8), _random(5, 8), _random(5)
    torch.testing.assert_close(reference.linear(x, reference.pack_linear(weight, bias)), x @ weight.T + bias)
    torch.testing.assert_close(reference.linear(x, reference.pack_linear(weight)), x @ weight.T)


def test_quantized_weights_are_multiplied_out() -> None:
    weight = random_weight(FORMS["int8 per channel"], 5, 8)
    x, wide, ids = _random(3, 8), weight.dequantized().double(), torch.tensor([4, 0])
    torch.testing.assert_close(reference.linear(x, reference.pack_quantized([weight], dtype=torch.float64)), x @ wide.T)
    rounding = reference.pack_quantized([weight._replace(rounds_inputs=True)], dtype=torch.float64)
    values, scales = round_rows(x)
    torch.testing.assert_close(reference.linear(x, rounding), (values * scales).double() @ wide.T)
    table = reference.pack_embedding(weight, dtype=torch.float64)
    torch.testing.assert_close(reference.embedding(ids, table), wide[ids])


@pytest.mark.parametrize("renormalize", [False, True])
def test_route_takes_the_likeliest(renormalize: bool) -> None:
    logits = _random(40, 9)
    weights, ids = reference.route(logits, ops.RouteArgs(3, renormalize))
    left = torch.exp(logits) / torch.exp(logits).sum(dim=-1, keepdim=True)
    for k in range(3):
        values, places = left.max(dim=-1)
        assert ids[:, k].tolist() == places.tolist()
        scale = weights[:, 0] / torch.softmax(logits, dim=-1).amax(dim=-1)
        torch.testing.assert_close(weights[:, k], values * scale)
        left.scatter_(1, places[:, None], 0.0)
    assert ids.dtype == torch.int32
    totals = weights.sum(dim=-1)
    assert torch.allclose(totals, torch.ones_like(totals)) is renormalize


def test_experts_are_a_masked_sum_over_all_of_them() -> None:
    x, gate_up, down = _random(7, 12), _random(4, 10, 12), _random(4, 12, 5)
    weights, ids = reference.route(_random(7, 4), ops.RouteArgs(2, True))
    each = [ops.ExpertWeights([first], second) for first, second in zip(gate_up, down, strict=True)]
    packed = reference.pack_experts(each, num_experts=4, dtype=torch.float64)
    gate, up = torch.einsum("eih,th->tei", gate_up, x).chunk(2, dim=-1)
    outputs = torch.einsum("ehi,tei->teh", down, F.silu(gate) * up)
    dense = torch.zeros(7, 4, dtype=torch.float64).scatter(1, ids.long(), weights)
    got = reference.experts(x, weights, ids, packed)
    torch.testing.assert_close(got, torch.einsum("te,teh->th", dense, outputs))


def test_meta_tensors_give_shapes() -> None:
    with torch.device("meta"):
        q, kv, cache = torch.empty(3, 4, 8), torch.empty(3, 2, 8), ops.CacheView(*torch.empty(2, 2, 2, 16, 8))
        indices = torch.empty(3, dtype=torch.int64)
        ragged = ops.RaggedBatch(indices, indices, indices, num_decodes=0, max_query_len=3, max_seq_len=3)
        q = ops.rope_and_cache(q, kv, kv, indices, indices, ops.RopeArgs(torch.empty(9, 8)), cache)
        assert ops.paged_attention(q, cache, ragged, ops.AttentionArgs(1.0)).shape == (3, 4, 8)
        assert ops.silu_mul(torch.empty(3, 8)).shape == ops.gelu_tanh_mul(torch.empty(3, 8)).shape == (3, 4)
        x, weight = torch.empty(3, 8), torch.empty(8)
        assert ops.add_layer_norm(x, x, weight, weight, eps=1e-5)[0].shape == (3, 8)
        for kind in ("gelu", "gelu_tanh", "relu", "relu_squared", "tanh"):
            assert ops.activation(x, kind).shape == (3, 8)
        assert ops.linear(torch.empty(3, 8), ops.pack_linear(torch.empty(5, 8))).shape == (3, 5)
        weights, ids = ops.route(torch.empty(3, 6), ops.RouteArgs(2, True))
        assert weights.shape == ids.shape == (3, 2)
        each = [ops.ExpertWeights([torch.empty(10, 8)], torch.empty(8, 5)) for _ in range(6)]
        packed = ops.pack_experts(each, num_experts=6, dtype=torch.float32, device=torch.device("meta"))
        assert ops.experts(torch.empty(3, 8), weights, ids, packed).shape == (3, 8)
