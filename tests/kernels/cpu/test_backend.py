"""The CPU backend, native and in torch ops, against the reference in float64."""

import random

import pytest
import torch
from torch import Tensor

from splitfuse.kernels import int8_cache, ops, reference
from splitfuse.kernels.cpu import backend as cpu
from splitfuse.kernels.cpu import build

pytestmark = pytest.mark.sampled(4)

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.fixture(params=["native", "torch"], autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(build, "library", lambda: None)
    elif build.library() is None:
        pytest.skip("needs a C++ compiler for the native CPU library")


def close(actual: Tensor, expected: Tensor) -> None:
    assert not actual.isnan().any()
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), atol=tolerance, rtol=tolerance)


def randn(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("num_tokens", "hidden"), [(1, 64), (3, 40), (5, 1000), (70, 512)])
def test_norms_and_silu(dtype: torch.dtype, num_tokens: int, hidden: int) -> None:
    x, residual = (randn(num_tokens, hidden, dtype=dtype, seed=s) for s in (0, 1))
    weight = randn(hidden, dtype=dtype, seed=2)
    close(cpu.rms_norm(x, weight, eps=1e-5), reference.rms_norm(x.double(), weight.double(), eps=1e-5))
    normed, new = cpu.add_rms_norm(x, residual.clone(), weight, eps=1e-5)
    close(new, x.double() + residual.double())
    close(normed, reference.rms_norm(new.double(), weight.double(), eps=1e-5))
    gate_up = randn(num_tokens, 2 * hidden, dtype=dtype, seed=3) * 4
    close(cpu.silu_mul(gate_up), reference.silu_mul(gate_up.double()))


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("num_tokens", "hidden"), [(1, 64), (3, 40), (5, 1000), (70, 512)])
def test_layer_norms(dtype: torch.dtype, num_tokens: int, hidden: int, has_bias: bool) -> None:
    x, residual = (randn(num_tokens, hidden, dtype=dtype, seed=s) + 2 for s in (0, 1))
    weight, bias = randn(hidden, dtype=dtype, seed=2), randn(hidden, dtype=dtype, seed=3) if has_bias else None
    wide_bias = None if bias is None else bias.double()
    close(
        cpu.layer_norm(x, weight, bias, eps=1e-5),
        reference.layer_norm(x.double(), weight.double(), wide_bias, eps=1e-5),
    )
    normed, new = cpu.add_layer_norm(x, residual.clone(), weight, bias, eps=1e-5)
    close(new, x.double() + residual.double())
    close(normed, reference.layer_norm(new.double(), weight.double(), wide_bias, eps=1e-5))


@pytest.mark.parametrize("hidden", [40, 512])
def test_a_wide_weight_is_not_rounded(hidden: int) -> None:
    x, residual = (randn(5, hidden, dtype=torch.bfloat16, seed=s) for s in (0, 1))
    weight = 1 + randn(hidden, dtype=torch.float32, seed=2) * 1e-3  # bfloat16 would round most weights to 1
    expected = reference.rms_norm(x.double(), weight.double(), eps=1e-5)
    assert torch.equal(cpu.rms_norm(x, weight, eps=1e-5), expected.bfloat16())
    normed, new = cpu.add_rms_norm(x, residual.clone(), weight, eps=1e-5)
    assert torch.equal(normed, reference.rms_norm(new.double(), weight.double(), eps=1e-5).bfloat16())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(1, 64), (3, 40), (70, 1000)])
def test_activations(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = randn(*shape, dtype=dtype, seed=3) * 4
    for kind in ("gelu", "gelu_tanh", "relu", "relu_squared", "tanh"):
        close(cpu.activation(x, kind), reference.activation(x.double(), kind))
    close(cpu.gelu_tanh_mul(x), reference.gelu_tanh_mul(x.double()))
    for cap in (0.5, 30.0):
        torch.testing.assert_close(
            cpu.softcap(x.float(), cap).double(), reference.softcap(x.double(), cap), atol=0, rtol=5e-7
        )


def test_activations_at_the_ends() -> None:
    gate = torch.tensor([[-torch.inf, -200.0, -88.0, -20.0, 0.0, 20.0, 200.0, 1e30] * 3])
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=-1)
    finite = gate.isfinite()  # -inf · 0 is NaN, in torch too
    for name in ("silu", "gelu_tanh"):
        out, expected = getattr(cpu, f"{name}_mul")(gate_up), getattr(reference, f"{name}_mul")(gate_up)
        torch.testing.assert_close(out[finite], expected[finite], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(cpu.softcap(gate, 3.0), 3 * torch.tanh(gate / 3), atol=0, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (5, 1024), (40, 5000)])
def test_max_logits(shape: tuple[int, int], dtype: torch.dtype) -> None:
    logits = randn(*shape, dtype=dtype, seed=0)
    largest, tokens = ops.max_logits(logits)
    assert torch.equal(largest, logits.float().amax(dim=1))
    first = (
        (logits == logits.amax(dim=1, keepdim=True)).int().argmax(dim=1)
    )  # index of the first among equal logits, which bfloat16 has
    assert torch.equal(tokens, first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_max_logits_of_what_is_not_finite(dtype: torch.dtype) -> None:
    logits = randn(6, 3000, dtype=dtype, seed=0)
    logits[0, 2900] = logits[1, 5] = logits[1, 7] = torch.nan
    logits[2] = -torch.inf
    logits[3, 1500] = torch.inf
    logits[4, [30, 2000]] = 99.0  # equal logits, of which the first wins
    largest, tokens = ops.max_logits(logits)
    assert largest.isnan().tolist() == [True, True, False, False, False, False]
    assert largest[2:5].tolist() == [-torch.inf, torch.inf, 99.0]
    assert tokens[:5].tolist() == [-1, -1, -1, -1, 30]
    assert 0 <= int(tokens[5]) < 3000


def ragged_case(rng: random.Random, *, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype):  # type: ignore[no-untyped-def]
    """Make random rows over a shuffled cache whose unused slots are NaN."""
    rows = sorted(
        ((rng.choice([1, 1, 3, 20, 140]), rng.choice([0, 5, 16, 63, 130])) for _ in range(rng.randint(1, 5))),
        key=lambda row: row[0] > 1,
    )
    seq_lens = [query + context for query, context in rows]
    counts = [-(-length // block_size) for length in seq_lens]
    num_blocks = sum(counts) + 3
    order = rng.sample(range(num_blocks), num_blocks)
    tables = torch.full((len(rows), max(counts)), order[-1], dtype=torch.int32)
    caches = [torch.full((num_blocks, num_kv_heads, block_size, head_dim), torch.nan, dtype=dtype) for _ in range(2)]
    for row, (count, length) in enumerate(zip(counts, seq_lens, strict=True)):
        blocks, order = order[:count], order[count:]
        tables[row, :count] = torch.tensor(blocks)
        for position in range(length):
            for cache in caches:
                cache[blocks[position // block_size], :, position % block_size] = torch.randn(num_kv_heads, head_dim)
    queries = [query for query, _ in rows]
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    ragged = ops.RaggedBatch(
        starts, torch.tensor(seq_lens, dtype=torch.int32), tables, queries.count(1), max(queries), max(seq_lens)
    )
    return caches[0], caches[1], ragged, sum(queries)


def in_int8(cache: Tensor) -> Tensor:
    """Round every slot of a cache [N, Hkv, S, D] of floats."""
    num_blocks, num_kv_heads, block_size, head_dim = cache.shape
    rounded = torch.empty(num_blocks, num_kv_heads, block_size, ops.token_width(head_dim, torch.int8), dtype=torch.int8)
    slots = torch.arange(num_blocks * block_size)
    int8_cache.write(rounded, slots // block_size, slots % block_size, cache.transpose(1, 2).flatten(0, 1))
    return rounded


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("seed", range(16))
def test_paged_attention(dtype: torch.dtype, seed: int, is_int8: bool) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    num_kv_heads, group, head_dim = rng.choice([1, 2]), rng.choice([1, 3, 4, 71]), rng.choice([16, 24, 37, 64, 80, 128])
    window, softcap = rng.choice([0, 0, 7, 30, 64]), rng.choice([0.0, 0.5, 50.0])
    k, v, ragged, num_tokens = ragged_case(
        rng, block_size=rng.choice([1, 4, 16, 32]), num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype
    )
    heads = num_kv_heads * group
    q = randn(num_tokens, heads + 5, head_dim, dtype=dtype, seed=seed)[:, :heads]  # strided like a part of a qkv tensor
    sinks = randn(heads, dtype=torch.float32, seed=seed) if seed % 3 == 0 else None
    args = ops.AttentionArgs(head_dim**-0.5, window, softcap, sinks=sinks)
    cache, wide = ops.CacheView(k, v), ops.CacheView(k.double(), v.double())
    if is_int8:
        cache = wide = ops.CacheView(in_int8(k), in_int8(v))
    out = cpu.paged_attention(q, cache, ragged, args)
    close(out, reference.paged_attention(q.double(), wide, ragged, args))


@pytest.mark.parametrize(("window", "lookahead"), [(0, 2**30), (33, 32), (5, 3), (0, 70), (1, 2**30)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attention_to_later_tokens(dtype: torch.dtype, window: int, lookahead: int) -> None:
    """Whole rows of 1 to 200 tokens, like an encoder's."""
    rng = random.Random(window)
    lengths = [1, 2, 3, 64, 65, rng.randint(100, 200)]
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    blocks_of = [-(-length // 16) for length in lengths]
    tables = torch.zeros(len(lengths), max(blocks_of), dtype=torch.int32)
    for row, count in enumerate(blocks_of):
        tables[row, :count] = torch.arange(count) + sum(blocks_of[:row])
    k, v = (randn(sum(blocks_of), 2, 16, 24, dtype=dtype, seed=seed) for seed in (1, 2))
    for row, length in enumerate(lengths):  # slots behind a row may hold anything
        k[tables[row, blocks_of[row] - 1], :, (length - 1) % 16 + 1 :] = torch.nan
    q = randn(sum(lengths), 4, 24, dtype=dtype, seed=3)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    ragged = ops.RaggedBatch(starts, seq_lens, tables, 1, max(lengths), max(lengths))
    args = ops.AttentionArgs(24**-0.5, window, 0.0, lookahead)
    expected = reference.paged_attention(q.double(), ops.CacheView(k.double(), v.double()), ragged, args)
    close(cpu.paged_attention(q, ops.CacheView(k, v), ragged, args), expected)


@pytest.mark.parametrize("query_len", [1, 40])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_what_an_int8_cache_costs(head_dim: int, dtype: torch.dtype, query_len: int) -> None:
    """Errors of up to half a 127th of a head's largest number cancel out: at most 0.014 was seen."""
    length = 100
    k, v = (randn(10, 2, 16, head_dim, dtype=dtype, seed=seed) for seed in (1, 2))
    q = randn(query_len, 4, head_dim, dtype=dtype, seed=3)
    ends = torch.tensor([0, query_len], dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
    table = torch.arange(10, dtype=torch.int32)[None]
    ragged = ops.RaggedBatch(*ends, table, int(query_len == 1), query_len, length)
    args = ops.AttentionArgs(head_dim**-0.5)
    exact = reference.paged_attention(q.double(), ops.CacheView(k.double(), v.double()), ragged, args)
    got = cpu.paged_attention(q, ops.CacheView(in_int8(k), in_int8(v)), ragged, args)
    assert float((got.double() - exact).abs().max()) < 0.03


def test_an_int8_cache_hands_on_what_is_not_finite() -> None:
    k, v = (randn(10, 1, 16, 64, dtype=torch.float32, seed=seed) for seed in (1, 2))
    k[2, 0, 3, 5], v[5, 0, 0, 1] = torch.inf, torch.nan  # in rows 0 and 1
    lengths = torch.tensor([40, 40, 40], dtype=torch.int32)
    table = torch.arange(9, dtype=torch.int32).view(3, 3)
    for query_len in (1, 40):
        starts = torch.arange(4, dtype=torch.int32) * query_len
        num_decodes = 3 if query_len == 1 else 0
        ragged = ops.RaggedBatch(starts, lengths, table, num_decodes, query_len, 40)
        q = randn(3 * query_len, 2, 64, dtype=torch.float32, seed=3)
        args = ops.AttentionArgs(0.125)
        out = cpu.paged_attention(q, ops.CacheView(in_int8(k), in_int8(v)), ragged, args)
        last = out.view(3, query_len, -1)[:, -1]
        assert last.isnan().all(dim=-1).tolist() == [True, True, False]
        assert not out.view(3, query_len, -1)[2].isnan().any()


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (50, 0.0), (50, 5.0)])
def test_a_chunk_gives_the_same_bits_however_it_is_cut(window: int, softcap: float, is_int8: bool) -> None:
    if build.library() is None:
        pytest.skip("torch's SDPA promises no such thing")
    length, block_size = 200, 16
    k, v = (randn(13, 2, block_size, 64, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
    if is_int8:
        k, v = in_int8(k), in_int8(v)
    q = randn(length, 6, 64, dtype=torch.bfloat16, seed=3)
    table = torch.arange(13, dtype=torch.int32)[None]

    def attend(start: int, stop: int) -> Tensor:
        ends = torch.tensor([0, stop - start], dtype=torch.int32), torch.tensor([stop], dtype=torch.int32)
        ragged = ops.RaggedBatch(*ends, table, 0, stop - start, stop)
        return cpu.paged_attention(
            q[start:stop], ops.CacheView(k, v), ragged, ops.AttentionArgs(0.125, window, softcap)
        )

    cut = [attend(start, stop) for start, stop in ((0, 5), (5, 90), (90, 153), (153, 200))]
    assert torch.equal(torch.cat(cut), attend(0, length))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("norm", "rotary", "num_tokens"),
    [(None, 64, 3), ("same", 64, 20), ("float32", 64, 20), (None, 32, 20), (None, 0, 20), ("same", 24, 3)],
)
def test_rope_and_cache(dtype: torch.dtype, norm: str | None, rotary: int, num_tokens: int) -> None:
    qkv = randn(num_tokens, 8, 64, dtype=dtype, seed=1)
    q, k, v = qkv.split([4, 2, 2], dim=1)
    cos_sin = torch.rand(100, rotary, generator=torch.Generator().manual_seed(2))
    positions = torch.randint(0, 100, (num_tokens,))
    slots = torch.randperm(160)[:num_tokens]
    slots[1] = -1
    norm_dtype = torch.float32 if norm == "float32" else dtype
    names = ("q_norm", "k_norm", "v_norm") if norm else ()
    weights = {name: randn(64, dtype=norm_dtype, seed=3 + i) for i, name in enumerate(names)}
    caches = [torch.zeros(10, 2, 16, 64, dtype=dtype) for _ in range(2)]
    expected_caches = [cache.double() for cache in caches]
    wide_rope = ops.RopeArgs(cos_sin.double(), **{name: weight.double() for name, weight in weights.items()})
    wide = q.double(), k.double(), v.double()
    expected = reference.rope_and_cache(*wide, positions, slots, wide_rope, ops.CacheView(*expected_caches))
    rope = ops.RopeArgs(cos_sin, **weights)
    close(cpu.rope_and_cache(q, k, v, positions, slots, rope, ops.CacheView(*caches)), expected)
    for cache, wanted in zip(caches, expected_caches, strict=True):
        close(cache, wanted)
    close(cpu.rotate(q, positions, rope), expected)
    close(reference.rotate(q, positions, rope), expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("head_dim", "rotary", "block_size"), [(64, 64, 16), (80, 32, 16), (128, 128, 8), (37, 0, 3)])
def test_an_int8_cache_is_off_by_half_a_step(dtype: torch.dtype, head_dim: int, rotary: int, block_size: int) -> None:
    """A step is max|x| / 127 of a head and token. A head that is not finite is NaN; unwritten slots do not change."""
    num_tokens = 20
    q, k, v = randn(num_tokens, 8, head_dim, dtype=dtype, seed=1).split([4, 2, 2], dim=1)
    v[5] = 0
    k[6, 1, 3], v[7, 0, 2] = torch.inf, torch.nan
    cos_sin = torch.rand(100, rotary, generator=torch.Generator().manual_seed(2))
    positions = torch.arange(num_tokens)
    slots = torch.randperm(10 * block_size, generator=torch.Generator().manual_seed(3))[:num_tokens]
    slots[1] = -1
    caches = [
        torch.full((10, 2, block_size, ops.token_width(head_dim, torch.int8)), 77, dtype=torch.int8) for _ in range(2)
    ]
    exact = [torch.zeros(10, 2, block_size, head_dim, dtype=torch.float64) for _ in range(2)]
    wide = (part.double() for part in (q, k, v))
    rope = ops.RopeArgs(cos_sin.double())
    expected = reference.rope_and_cache(*wide, positions, slots, rope, ops.CacheView(*exact))
    rotated = cpu.rope_and_cache(q, k, v, positions, slots, ops.RopeArgs(cos_sin), ops.CacheView(*caches))
    close(rotated, expected)
    untouched = torch.ones(10 * block_size, dtype=torch.bool)
    slots = slots[slots >= 0]
    untouched[slots] = False
    unwritten = torch.full((1,), 0x4D4D4D4D, dtype=torch.int32).view(torch.float32) * 77  # slot whose bytes are all 77
    for cache, wanted in zip(caches, exact, strict=True):
        kept = int8_cache.read(cache, slice(None)).transpose(1, 2).flatten(0, 1)
        wanted = wanted.transpose(1, 2).flatten(0, 1)[slots]
        assert bool((kept[untouched] == unwritten).all())
        kept = kept[slots].double()
        step = wanted.abs().amax(dim=-1, keepdim=True) / 127
        is_broken = ~wanted.isfinite().all(dim=-1)
        assert is_broken.sum() == 1
        assert kept[is_broken].isnan().all()
        assert bool(((kept - wanted).abs() <= step * 0.5001)[~is_broken].all())


@pytest.mark.parametrize("has_v_norm", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_native_and_torch_write_the_same_int8_cache(
    dtype: torch.dtype, has_v_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if build.library() is None:
        pytest.skip("needs a C++ compiler for the native CPU library")
    q = randn(300, 4, 64, dtype=dtype, seed=1)
    cos_sin, slots = torch.rand(300, 64, generator=torch.Generator().manual_seed(2)), torch.arange(300)
    caches = torch.zeros(2, 2, 20, 4, 16, ops.token_width(64, torch.int8), dtype=torch.int8)
    rope = ops.RopeArgs(cos_sin, v_norm=randn(64, dtype=torch.float32, seed=2) if has_v_norm else None)
    for pair in caches:
        cpu.rope_and_cache(q, q, q, slots, slots, rope, ops.CacheView(*pair))
        monkeypatch.setattr(build, "library", lambda: None)
    one, other = (int8_cache.read(part.flatten(0, 1), slice(None)) for part in caches)
    differ = (one - other).abs() > 1e-6 * one.abs().max()
    assert differ.double().mean() < 1e-3, "but for halves that rounding of the product decides"
    torch.testing.assert_close(one, other, atol=1.01 * float(one.abs().max()) / 127, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_linear(dtype: torch.dtype, bias: bool) -> None:
    x, weight = randn(5, 48, dtype=dtype, seed=0), randn(33, 48, dtype=dtype, seed=1)
    b = randn(33, dtype=dtype, seed=2) if bias else None
    expected = x.double() @ weight.double().T + (0 if b is None else b.double())
    torch.testing.assert_close(cpu.linear(x, cpu.pack_linear(weight, b)).double(), expected, atol=1e-1, rtol=2e-2)


def test_gumbel_argmax_samples_what_the_reference_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(300, 1003, generator=generator)
    keys = torch.randint(-(2**63), 2**63 - 1, (300,), generator=generator)
    assert cpu.gumbel_argmax(logits, keys).tolist() == reference.gumbel_argmax(logits.double(), keys).tolist()


def test_gumbel_argmax_never_takes_what_is_impossible() -> None:
    logits = torch.full((200, 50), -torch.inf)
    logits[:, 17] = -3.0
    assert cpu.gumbel_argmax(logits, torch.arange(200)).tolist() == [17] * 200
