"""Experts on the CPU, native and in torch ops, against the reference in float64, and to the bit in any batch."""

import weakref
from collections.abc import Iterator, Sequence

import pytest
import torch
from quantized_cases import FORMS, random_weight
from torch import Tensor

from splitfuse.kernels import ops, reference
from splitfuse.kernels.cpu import build, experts
from splitfuse.kernels.quantize import QuantizedWeight, dequantized

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
HIDDEN, INNER = 256, 128


@pytest.fixture(params=["native", "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "torch":
        monkeypatch.setattr(build, "library", lambda: None)
    elif build.library() is None:
        pytest.skip("needs a C++ compiler for the native CPU library")
    return name


needs_library = pytest.mark.skipif(build.library() is None, reason="needs a C++ compiler for the native CPU library")


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def plain_experts(num_experts: int, hidden: int, inner: int, dtype: torch.dtype) -> list[ops.ExpertWeights]:
    gate_up = (randn(num_experts, 2 * inner, hidden, seed=1) * hidden**-0.5).to(dtype)
    down = (randn(num_experts, hidden, inner, seed=2) * inner**-0.5).to(dtype)
    return [ops.ExpertWeights(first.chunk(2), second) for first, second in zip(gate_up, down, strict=True)]


def quantized_experts(form: str, num_experts: int, down_form: str = "") -> list[ops.ExpertWeights]:
    """Return experts in this form; `down` in another one where its rows have no whole groups."""

    def weight(name: str, num_outputs: int, num_inputs: int, seed: int) -> QuantizedWeight:
        quantized = random_weight(FORMS[name], num_outputs, num_inputs, seed=seed)
        scale = quantized.dequantized().std().item() * num_inputs**0.5
        level = "scales" if quantized.super_scales is None else "super_scales"
        offset = "offsets" if quantized.super_scales is None else "super_offsets"
        parts = {name: part for name in (level, offset) if (part := getattr(quantized, name)) is not None}
        return quantized._replace(**{name: (part.float() / scale).to(part.dtype) for name, part in parts.items()})

    has_no_groups = FORMS[form].super_group or FORMS[form].group > HIDDEN // 2
    down = down_form or ("Q8_0" if has_no_groups else form)
    return [
        ops.ExpertWeights(
            [weight(form, INNER, HIDDEN, 10 * expert + half) for half in range(2)],
            weight(down, HIDDEN, HIDDEN // 2, 10 * expert + 2),
        )
        for expert in range(num_experts)
    ]


def routing(num_tokens: int, top_k: int, num_experts: int) -> tuple[Tensor, Tensor]:
    return ops.route(randn(num_tokens, num_experts, seed=5), ops.RouteArgs(top_k, True))


UNGATED = ops.ExpertArgs(is_gated=False)


def in_double(
    each: list[ops.ExpertWeights], dtype: torch.dtype, args: ops.ExpertArgs = ops.SWIGLU_EXPERTS
) -> list[reference.Expert]:
    def wide(weight: Tensor | QuantizedWeight) -> Tensor:
        return weight.double() if isinstance(weight, Tensor) else dequantized([weight], dtype).double()

    doubles = [
        ops.ExpertWeights([*map(wide, expert.gate_up)], wide(expert.down), *_double(expert[2:])) for expert in each
    ]
    return reference.pack_experts(doubles, num_experts=len(each), dtype=torch.float64, args=args)


def _double(parts: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if part is None else part.double() for part in parts]


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    assert not actual.isnan().any()
    torch.testing.assert_close(actual.double(), expected, atol=tolerance, rtol=tolerance)


ROUTINGS = {
    "one token": ([[3, 1]], 5),
    "empty experts": ([[0, 4], [4, 0], [0, 2], [2, 4]], 6),
    "all to one": ([[2]] * 9, 4),
    "all to all": ([[2, 0, 1], [0, 1, 2]] * 20, 3),
    "many": ([[(t * 7 + k * k) % 32 for k in range(4)] for t in range(50)], 32),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ROUTINGS)
def test_plain_experts(name: str, dtype: torch.dtype, backend: str) -> None:
    chosen, num_experts = ROUTINGS[name]
    ids = torch.tensor(chosen, dtype=torch.int32)
    weights = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0))
    x = randn(len(ids), 48, dtype=dtype, seed=3)
    each = plain_experts(num_experts, hidden=48, inner=40, dtype=dtype)
    packed = ops.pack_experts(iter(each), num_experts=num_experts, dtype=dtype, device=CPU)
    assert isinstance(packed, experts.NativeExperts) is (backend == "native")
    got = ops.experts(x, weights, ids, packed)
    assert got.dtype == dtype
    close(got, reference.experts(x.double(), weights, ids, in_double(each, dtype)), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("has_bias", [False, True])
def test_experts_without_gates(has_bias: bool, dtype: torch.dtype, backend: str) -> None:
    ids, num_experts = torch.tensor(ROUTINGS["many"][0], dtype=torch.int32), 32
    weights, x = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)), randn(50, 48, dtype=dtype, seed=3)
    each = [
        ops.ExpertWeights(
            [expert.gate_up[0]],
            expert.down,
            randn(40, seed=number, dtype=dtype) if has_bias else None,
            randn(48, seed=number, dtype=dtype) if has_bias else None,
        )
        for number, expert in enumerate(plain_experts(num_experts, hidden=48, inner=40, dtype=dtype))
    ]
    packed = ops.pack_experts(iter(each), num_experts=num_experts, dtype=dtype, device=CPU, args=UNGATED)
    assert isinstance(packed, experts.NativeExperts) is (backend == "native")
    got = ops.experts(x, weights, ids, packed)
    expected = reference.experts(x.double(), weights, ids, in_double(each, dtype, args=UNGATED))
    close(got, expected, 4 * TOLERANCE[dtype])
    if backend == "native":
        parts = [ops.experts(*part, packed) for part in zip(x.split(7), weights.split(7), ids.split(7), strict=True)]
        assert torch.equal(torch.cat(parts), got)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", sorted(FORMS))
def test_quantized_experts(form: str, dtype: torch.dtype, backend: str) -> None:
    """In every form; matrices of bfloat16 are rounded once more where they are widened."""
    each = quantized_experts(form, 6)
    packed = ops.pack_experts(iter(each), num_experts=6, dtype=dtype, device=CPU)
    x = randn(9, HIDDEN, seed=3, dtype=dtype)
    weights, ids = routing(9, 3, 6)
    expected = reference.experts(x.double(), weights, ids, in_double(each, torch.float64))
    close(ops.experts(x, weights, ids, packed), expected, 4e-2 if dtype == torch.bfloat16 else 2e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", ["plain", "MXFP4"])
def test_biases_and_a_clamped_activation(form: str, dtype: torch.dtype, backend: str) -> None:
    each = plain_experts(5, HIDDEN, INNER, dtype) if form == "plain" else quantized_experts(form, 5)
    each = [
        expert._replace(
            gate_up_bias=randn(2 * INNER, seed=number, dtype=dtype), down_bias=randn(HIDDEN, seed=9, dtype=dtype)
        )
        for number, expert in enumerate(each)
    ]
    args = ops.ExpertArgs(limit=1.5)
    packed = ops.pack_experts(iter(each), num_experts=5, dtype=dtype, device=CPU, args=args)
    x, (weights, ids) = randn(12, HIDDEN, seed=3, dtype=dtype), routing(12, 2, 5)
    expected = reference.experts(x.double(), weights, ids, in_double(each, torch.float64, args))
    close(ops.experts(x, weights, ids, packed), expected, 4e-2 if dtype == torch.bfloat16 else 2e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "args", [ops.ExpertArgs(is_gelu=True), ops.ExpertArgs(weighs_inputs=True)], ids=["gelu", "weighed inputs"]
)
def test_other_experts(args: ops.ExpertArgs, dtype: torch.dtype, backend: str) -> None:
    each = plain_experts(5, HIDDEN, INNER, dtype)
    packed = ops.pack_experts(iter(each), num_experts=5, dtype=dtype, device=CPU, args=args)
    x, (weights, ids) = randn(12, HIDDEN, seed=3, dtype=dtype), routing(12, 2, 5)
    expected = reference.experts(x.double(), weights, ids, in_double(each, torch.float64, args))
    got = ops.experts(x, weights, ids, packed)
    close(got, expected, 4e-2 if dtype == torch.bfloat16 else 2e-5)
    alone = [ops.experts(x[t : t + 1], weights[t : t + 1], ids[t : t + 1], packed) for t in range(12)]
    assert torch.equal(torch.cat(alone), got) or backend == "torch"


@needs_library
def test_experts_of_different_kinds() -> None:
    """Gate and up differ, and so do the experts; one expert reorders its inputs."""
    each = [
        *quantized_experts("Q4_0", 2),
        *quantized_experts("Q6_K", 1, "AWQ"),
        *plain_experts(1, HIDDEN, INNER, torch.float32),
    ]
    each[1] = each[1]._replace(gate_up=[each[1].gate_up[0], *quantized_experts("Q5_1", 1)[0].gate_up[1:]])
    down = each[0].down
    assert isinstance(down, QuantizedWeight)
    order = torch.randperm(INNER, generator=torch.Generator().manual_seed(1))
    each[0] = each[0]._replace(down=down._replace(order=order))
    packed = ops.pack_experts(iter(each), num_experts=4, dtype=torch.float32, device=CPU)
    assert isinstance(packed, experts.NativeExperts)
    x = randn(20, HIDDEN, seed=3)
    weights, ids = routing(20, 2, 4)
    expected = reference.experts(x.double(), weights, ids, in_double(each, torch.float64))
    close(ops.experts(x, weights, ids, packed), expected, 2e-5)


@pytest.mark.parametrize("options", [{"bits": 8}, {"bits": 4}, {"is_fp8": True}], ids=str)
def test_rounded_experts_are_those_of_linear(options: dict[str, int], backend: str) -> None:
    each = plain_experts(3, HIDDEN, INNER, torch.float32)
    packed = ops.pack_experts(iter(each), num_experts=3, dtype=torch.float32, device=CPU, **options)
    pack = ops.pack_fp8 if options.get("is_fp8") else lambda weight: ops.pack_linear(weight, **options)
    x = randn(1, HIDDEN, seed=3)
    for expert in range(3):
        gate_up, down = pack(torch.cat([*each[expert].gate_up])), pack(each[expert].down)
        expected = ops.linear(ops.silu_mul(ops.linear(x, gate_up)), down)
        got = ops.experts(x, torch.ones(1, 1), torch.full((1, 1), expert, dtype=torch.int32), packed)
        assert torch.equal(got, expected)


@needs_library
@pytest.mark.parametrize("input_bits", [16, 8, ops.FAST_INPUTS])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", ["plain", "AWQ", "Q4_K", "Q6_K", "Q8_0", "float8 of 128", "int8 per channel", "mixed"])
def test_a_token_has_the_same_bits_in_any_batch(form: str, dtype: torch.dtype, input_bits: int) -> None:
    each = plain_experts(4, HIDDEN, INNER, dtype)
    if form == "mixed":  # zeros and groups differ
        each = [expert for form in ("Q4_0", "Q4_1", "Q8_0", "AWQ") for expert in quantized_experts(form, 1)]
    elif form != "plain":
        each = quantized_experts(form, 4)
    packed = ops.pack_experts(iter(each), num_experts=4, dtype=dtype, device=CPU, input_bits=input_bits)
    x, (weights, ids) = randn(160, HIDDEN, seed=3, dtype=dtype), routing(160, 2, 4)
    whole = ops.experts(x, weights, ids, packed)
    for size in (1, 2, 3, 5, 8, 13, 40):
        parts = zip(x.split(size), weights.split(size), ids.split(size), strict=True)
        assert torch.equal(torch.cat([ops.experts(*part, packed) for part in parts]), whole), size


def test_experts_are_packed_one_at_a_time() -> None:
    """Before the next expert is taken, the previous one is freed: no layer is in memory twice."""
    num_alive: list[int] = []
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def each() -> Iterator[ops.ExpertWeights]:
        for _ in range(6):
            num_alive.append(len(alive))
            pair = (torch.zeros(8, 16, dtype=torch.bfloat16), torch.zeros(16, 4, dtype=torch.bfloat16))
            alive.update(pair)
            yield ops.ExpertWeights([pair[0]], pair[1])

    ops.pack_experts(each(), num_experts=6, dtype=torch.bfloat16, device=CPU)
    assert max(num_alive) <= 2


def test_listed_experts_sum_alike_alone_and_in_a_batch() -> None:
    out, weights = randn(300, 8, 64, seed=1), torch.rand(300, 8)
    together = experts._weigh(out, weights)
    assert all(torch.equal(experts._weigh(out[t : t + 1], weights[t : t + 1])[0], together[t]) for t in range(300))


SCORES = randn(60, seed=7)
ROUTES = {
    "softmax": ops.RouteArgs(8, True),
    "probabilities": ops.RouteArgs(8, False),
    "sigmoid": ops.RouteArgs(8, True, is_sigmoid=True, scale=2.5),
    "bias": ops.RouteArgs(5, True, bias=SCORES),
    "best of a group": ops.RouteArgs(6, False, num_groups=6, num_kept_groups=2, num_group_scores=1),
    "sparsemixer": ops.RouteArgs(2, False, jitter=0.05, scale=1.5),
    "groups": ops.RouteArgs(6, False, is_sigmoid=True, bias=SCORES / 4, num_groups=6, num_kept_groups=2),
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ROUTES)
def test_route(name: str, dtype: torch.dtype, backend: str) -> None:
    logits = torch.stack([torch.randperm(60, generator=torch.Generator().manual_seed(t)) for t in range(20)]) / 8
    logits = logits.to(dtype)
    weights, ids = ops.route(logits, ROUTES[name])
    expected, expected_ids = reference.route(logits.double(), ROUTES[name])
    assert torch.equal(ids, expected_ids)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=1e-6)
    alone = [ops.route(row, ROUTES[name])[0] for row in logits.split(1)]
    assert torch.equal(torch.cat(alone), weights)


@needs_library
def test_experts_of_a_token_that_is_nan_exist() -> None:
    logits = torch.full((3, 20), torch.nan)
    weights, ids = ops.route(logits, ops.RouteArgs(4, True))
    assert weights.isnan().all()
    assert all(sorted(row) == [0, 1, 2, 3] for row in ids.tolist())


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_add_gated(dtype: torch.dtype, backend: str) -> None:
    x, y, gate = (randn(7, width, seed=seed, dtype=dtype) for seed, width in ((1, 50), (2, 50), (3, 1)))
    expected = x.double() + torch.sigmoid(gate.double()) * y.double()
    close(ops.add_gated(x, gate, y), expected, TOLERANCE[dtype])
