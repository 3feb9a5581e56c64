from random import Random
from typing import Any

import pytest
import torch
import triton.language as tl
from kernel_cases import (
    DEVICE,
    DOT_DTYPES,
    DTYPES,
    INTERPRETED,
    NUM_RANDOM_CASES,
    TOLERANCES,
    assert_near,
    random_tensor,
)
from quantized_cases import FORMS, Form, random_weight
from torch import Tensor

from splitfuse.kernels import ops, reference
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda import device_info, moe, moe_route, quantized_linear
from splitfuse.kernels.cuda.device_info import H100
from splitfuse.kernels.cuda.linear.int8_linear import Int8Linear
from splitfuse.kernels.cuda.linear.quantized_experts import QuantizedExperts
from splitfuse.kernels.quantize import QuantizedWeight

pytestmark = pytest.mark.sampled(12)

HIDDEN, INNER = 48, 40


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill fresh memory with NaN, or with a pair and an expert far out of range, until a kernel writes it."""
    empty = torch.empty

    def poisoned(*args: object, **options: object) -> Tensor:
        tensor: Tensor = empty(*args, **options)  # type: ignore[call-overload]
        return tensor.fill_(float("nan") if tensor.is_floating_point() else min(2**30, torch.iinfo(tensor.dtype).max))

    monkeypatch.setattr(torch, "empty", poisoned)


def matrices(num_experts: int, dtype: torch.dtype, *, hidden: int, inner: int) -> list[tuple[Tensor, Tensor]]:
    gate_up = random_tensor(num_experts, 2 * inner, hidden, seed=1, dtype=torch.float32) * hidden**-0.5
    down = random_tensor(num_experts, hidden, inner, seed=2, dtype=torch.float32) * inner**-0.5
    return list(zip(gate_up.to(dtype), down.to(dtype), strict=True))


def random_routing(num_tokens: int, top_k: int, num_experts: int, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    chosen = [torch.randperm(num_experts, generator=generator)[:top_k] for _ in range(num_tokens)]
    return torch.stack(chosen).to(torch.int32).to(DEVICE)


def check(
    expert_ids: Tensor,
    *,
    num_experts: int,
    dtype: torch.dtype = torch.float16,
    hidden: int = HIDDEN,
    inner: int = INNER,
    config: moe.Config | None = None,
) -> None:
    num_tokens = len(expert_ids)
    wide = random_tensor(num_tokens + 2, hidden + 16, seed=3, dtype=dtype)
    wide[-2:], wide[:, hidden:] = float("nan"), float("nan")
    x = wide[:-2, :hidden]
    weights = torch.rand(expert_ids.shape, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    each = matrices(num_experts, dtype, hidden=hidden, inner=inner)
    packed = moe.pack_experts(((*pair, None, None) for pair in each), num_experts=num_experts)
    got = moe.experts(x, weights, expert_ids, packed, config=config)
    assert got.dtype == dtype
    in_double = reference.pack_experts(
        [ops.ExpertWeights([gate_up.double()], down.double()) for gate_up, down in each],
        num_experts=num_experts,
        dtype=torch.float64,
    )
    assert_near(got, reference.experts(x.double(), weights, expert_ids, in_double))


@pytest.mark.parametrize("dtype", DOT_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "top_k", "num_experts"),
    [(1, 2, 8), (4, 2, 8), (5, 3, 7), (40, 2, 3), (3, 1, 1), (9, 4, 4), (16, 8, 128)],
)
def test_experts(num_tokens: int, top_k: int, num_experts: int, dtype: torch.dtype) -> None:
    check(random_routing(num_tokens, top_k, num_experts), num_experts=num_experts, dtype=dtype)


@pytest.mark.parametrize("expert", [0, 2, 5])
@pytest.mark.parametrize("num_tokens", [1, 6, 16, 17, 50])
def test_all_tokens_to_one_expert_leave_the_others_empty(num_tokens: int, expert: int) -> None:
    check(torch.full((num_tokens, 1), expert, dtype=torch.int32, device=DEVICE), num_experts=6)


CONFIGS = [
    moe.choose_config(num_pairs, 8, element_size, H100._replace(capability=capability))
    for element_size in (2, 4)
    for capability in (80, 90)
    for num_pairs in (1, 128, 256, 4096)
]


@pytest.mark.parametrize("config", sorted(set(CONFIGS)), ids=str)
@pytest.mark.parametrize(("hidden", "inner"), [(HIDDEN, INNER), (128, 256)])  # partial tiles, and whole ones
@pytest.mark.parametrize("num_tokens", [2, 20])  # without and with grouping
def test_every_configuration(config: moe.Config, num_tokens: int, hidden: int, inner: int) -> None:
    dtype = torch.float32 if config.num_stages == 1 else torch.float16
    ids = random_routing(num_tokens, 2, 5)
    check(ids, num_experts=5, hidden=hidden, inner=inner, config=config, dtype=dtype)


def test_a_token_has_the_same_bits_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check exact mode's products: of few pairs, which are not grouped, and of many."""
    monkeypatch.setattr(device_info.EXACT, "is_on", True)
    x, ids = random_tensor(90, HIDDEN, seed=3, dtype=torch.float16), random_routing(90, 3, 12)
    packed = moe.pack_experts(
        ((*pair, None, None) for pair in matrices(12, torch.float16, hidden=HIDDEN, inner=INNER)), num_experts=12
    )
    weights = torch.rand(90, 3).to(DEVICE)
    whole = moe.experts(x, weights, ids, packed)
    for rows in (slice(0, 1), slice(3, 7), slice(50, 90)):
        assert torch.equal(moe.experts(x[rows], weights[rows], ids[rows], packed), whole[rows])
    assert moe_route.group_by_expert(ids[3:7], num_experts=12, block_m=64).pairs is None
    assert moe_route.group_by_expert(ids[50:90], num_experts=12, block_m=64).pairs is not None


@pytest.mark.parametrize("seed", range(NUM_RANDOM_CASES // 2))
def test_random_shapes(seed: int) -> None:
    random = Random(seed)
    num_experts = random.randint(1, 20)
    ids = random_routing(random.randint(1, 60), random.randint(1, num_experts), num_experts, seed=seed)
    sizes = {"hidden": random.choice([16, 48, 64, 200]), "inner": random.choice([16, 24, 128])}
    check(ids, num_experts=num_experts, dtype=random.choice(DOT_DTYPES), **sizes)


def test_a_token_that_is_nan_spoils_no_other() -> None:
    x, ids = random_tensor(6, HIDDEN, seed=3, dtype=torch.float16), random_routing(6, 2, 3)
    packed = moe.pack_experts(
        ((*pair, None, None) for pair in matrices(3, torch.float16, hidden=HIDDEN, inner=INNER)), num_experts=3
    )
    weights = torch.rand(6, 2).to(DEVICE)
    expected = moe.experts(x, weights, ids, packed)
    x[2] = float("nan")
    got = moe.experts(x, weights, ids, packed)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(got[others], expected[others])
    assert got[2].isnan().all()


@pytest.mark.parametrize("block_m", [16, 64])
@pytest.mark.parametrize(
    ("num_tokens", "top_k", "num_experts"), [(2, 1, 1), (6, 8, 40), (7, 2, 8), (30, 3, 5), (700, 4, 13), (2100, 8, 9)]
)
def test_pairs_are_grouped_by_expert(num_tokens: int, top_k: int, num_experts: int, block_m: int) -> None:
    ids = random_routing(num_tokens, top_k, num_experts)
    tiles = moe_route.group_by_expert(ids, num_experts=num_experts, block_m=block_m)
    num_pairs = num_tokens * top_k
    expected: list[tuple[int, list[int]]] = []
    for expert in range(num_experts):
        mine = (ids.flatten() == expert).nonzero().flatten().tolist()
        mine += [num_pairs] * (-len(mine) % block_m)
        expected += [(expert, mine[i : i + block_m]) for i in range(0, len(mine), block_m)]
    assert tiles.pairs is not None
    assert tiles.experts.tolist() == [e for e, _ in expected] + [-1] * (len(tiles.experts) - len(expected))
    assert tiles.pairs.view(-1, block_m).tolist()[: len(expected)] == [pairs for _, pairs in expected]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(("num_tokens", "num_experts", "top_k"), [(1, 1, 1), (4, 8, 2), (9, 128, 8), (2, 60, 60)])
def test_route(num_tokens: int, num_experts: int, top_k: int, renormalize: bool, dtype: torch.dtype) -> None:
    wide = torch.full((num_tokens, num_experts + 5), float("nan"), dtype=dtype, device=DEVICE)
    for token in range(num_tokens):  # no two logits are equal in any dtype
        wide[token, :num_experts] = torch.randperm(num_experts, generator=torch.Generator().manual_seed(token)) / 16 - 3
    logits = wide[:, :num_experts]
    weights, ids = moe_route.route(logits, top_k=top_k, renormalize=renormalize)
    expected, expected_ids = reference.route(logits.double(), ops.RouteArgs(top_k, renormalize))
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights.double(), expected, rtol=TOLERANCES[torch.float32], atol=1e-7)


@pytest.mark.skipif(not INTERPRETED, reason="replaces a function of the interpreter")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's of NaN
def test_a_router_that_is_nan_names_an_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU compares by >, so its argmax of NaN may be any place; of 60 experts padded to 64 that is one of 4 others.

    The weights of such an expert would be read from beyond the last one's.
    """
    argmax = tl.argmax

    def last_of_nan(x: Any, axis: int) -> Any:
        nan = tl.max(tl.where(x == x, -1, tl.arange(0, x.shape[0])), axis=0)
        return tl.where(nan >= 0, nan, argmax(x, axis=axis))

    monkeypatch.setattr(tl, "argmax", last_of_nan)
    logits = random_tensor(3, 60, seed=1, dtype=torch.float32)
    logits[1] = float("nan")
    weights, ids = moe_route.route(logits, top_k=4, renormalize=True)
    assert ids.max() < 60
    assert ids[[0, 2]].tolist() == logits[[0, 2]].topk(4).indices.tolist()
    assert weights[1].isnan().all()


def test_of_equal_experts_none_is_chosen_twice() -> None:
    logits = torch.full((1, 6), -1e4, device=DEVICE)
    logits[0, 3] = 0.0  # all other experts have probability 0
    weights, ids = moe_route.route(logits, top_k=4, renormalize=True)
    assert ids[0, 0] == 3
    assert len(set(ids[0].tolist())) == 4
    assert weights.tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_the_configuration_follows_the_load() -> None:
    blocks = [moe.choose_config(pairs, 128, 2, H100).BLOCK_M for pairs in (8, 512, 2048, 4096, 65_536)]
    assert blocks == [16, 16, 32, 64, 128]


@pytest.mark.parametrize("num_tokens", [1, 40])
def test_biases_and_a_clamped_activation(num_tokens: int) -> None:
    dtype, ids = torch.float32, random_routing(num_tokens, 2, 3)
    x, weights = random_tensor(num_tokens, HIDDEN, seed=3, dtype=dtype), torch.rand(num_tokens, 2).to(DEVICE)
    each = [
        ops.ExpertWeights(
            [gate_up * 8],
            down,
            random_tensor(len(gate_up), seed=5, dtype=dtype),
            random_tensor(len(down), seed=6, dtype=dtype),
        )
        for gate_up, down in matrices(3, dtype, hidden=HIDDEN, inner=INNER)
    ]
    parts = ((expert.gate_up[0], expert.down, expert.gate_up_bias, expert.down_bias) for expert in each)
    args = ops.ExpertArgs(limit=2.0)
    got = moe.experts(x, weights, ids, moe.pack_experts(parts, num_experts=3, args=args))
    wide = reference.pack_experts(each, num_experts=3, dtype=dtype, args=args)
    assert_near(got, reference.experts(x, weights, ids, wide).double(), tolerance=1e-4)


def _expert(form: Form, seed: int, *, has_bias: bool = False) -> ops.ExpertWeights:
    hidden, inner = 256, 256
    halves = [random_weight(form, inner, hidden, seed=seed + place).to(torch.device(DEVICE)) for place in (0, 1)]
    biases = [random_tensor(size, seed=seed, dtype=torch.float16) if has_bias else None for size in (2 * inner, hidden)]
    return ops.ExpertWeights(
        halves, random_weight(form, hidden, inner, seed=seed + 2).to(torch.device(DEVICE)), *biases
    )


PACKED_FORMS = ["float8 of 128", "float8 in blocks", "float8 per channel", "AWQ", "Q4_0", "MXFP4"]
PACKED_FORMS += ["Q6_K", "int8 per channel"]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", PACKED_FORMS)
@pytest.mark.parametrize(
    ("num_tokens", "args"),
    [
        (1, ops.SWIGLU_EXPERTS),
        (5, ops.ExpertArgs(limit=2.0)),
        (50, ops.SWIGLU_EXPERTS),
        (3, ops.ExpertArgs(is_gelu=True)),
        (3, ops.ExpertArgs(weighs_inputs=True)),
    ],
    ids=str,
)
def test_experts_of_quantized_files_stay_packed(name: str, num_tokens: int, args: ops.ExpertArgs) -> None:
    limit = args.limit
    each = [_expert(FORMS[name], 10 * index, has_bias=bool(limit)) for index in range(3)]
    dtype = torch.float32 if limit else torch.float16  # biases make sums larger than float16's tolerance is for
    packed = cuda.pack_experts(each, num_experts=3, dtype=dtype, args=args)
    assert isinstance(packed, QuantizedExperts)
    assert packed.gate_up.values.dtype == torch.int32
    assert packed.gate_up.values.nbytes == 3 * 2 * 256 * 256 * packed.gate_up.bits // 8
    ids = random_routing(num_tokens, 2, 3)
    x = _view_of(random_tensor(num_tokens, 256, seed=3, dtype=dtype) / 16)  # sums near 1: tolerances are relative
    weights = torch.rand(num_tokens, 2).to(DEVICE)
    in_double = [
        expert._replace(gate_up_bias=expert.gate_up_bias.double(), down_bias=expert.down_bias.double())
        if expert.gate_up_bias is not None and expert.down_bias is not None
        else expert
        for expert in each
    ]
    wide = reference.pack_experts(in_double, num_experts=3, dtype=torch.float64, args=args)
    assert_near(
        cuda.experts(x, weights, ids, packed), reference.experts(x.double(), weights, ids, wide), tolerance=1e-4
    )


def _view_of(x: Tensor) -> Tensor:
    """Return x as a view of a wider tensor of NaN."""
    wide = torch.full((len(x), x.shape[1] + 24), float("nan"), dtype=x.dtype, device=DEVICE)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


@pytest.mark.thorough  # 11 s under the interpreter
def test_experts_of_fp8_blocks_keep_a_scale_for_each_block() -> None:
    """Check the bytes, and an expert whose scales differ in a block: then all get a scale for each output."""
    each = [_expert(FORMS["float8 in blocks"], 10 * index) for index in range(3)]
    packed = cuda.pack_experts(each, num_experts=3, dtype=torch.float16)
    assert isinstance(packed, QuantizedExperts)
    assert packed.gate_up.scales.shape == (2, 3 * 4)
    assert packed.down.scales.shape == (2, 3 * 2)
    for place in (0, 2):
        parts = list(each)
        gate = parts[place].gate_up[0]
        assert isinstance(gate, QuantizedWeight)
        fine = gate._replace(scales=gate.scales * (1 + torch.arange(256, device=DEVICE) % 2))
        parts[place] = parts[place]._replace(gate_up=[fine, parts[place].gate_up[1]])
        got = cuda.pack_experts(parts, num_experts=3, dtype=torch.float16)
        assert isinstance(got, QuantizedExperts)
        assert got.gate_up.scale_rows == 1
        expected = torch.cat(
            [half.dequantized() for expert in parts for half in expert.gate_up if isinstance(half, QuantizedWeight)]
        )
        torch.testing.assert_close(quantized_linear.widen(got.gate_up, torch.float32), expected)


@pytest.mark.parametrize("has_bias", [False, True])
def test_experts_that_round_their_inputs_have_equal_bits_in_any_batch(has_bias: bool) -> None:
    each = []
    for index in range(3):
        expert = _expert(FORMS["int8 per channel"], 10 * index, has_bias=has_bias)
        halves = [half._replace(rounds_inputs=True) for half in expert.gate_up if isinstance(half, QuantizedWeight)]
        assert isinstance(expert.down, QuantizedWeight)
        each.append(expert._replace(gate_up=halves, down=expert.down._replace(rounds_inputs=True)))
    packed = cuda.pack_experts(each, num_experts=3, dtype=torch.float32)
    assert isinstance(packed, QuantizedExperts)
    assert isinstance(packed.gate_up, Int8Linear)
    ids, weights = random_routing(60, 2, 3), torch.rand(60, 2).to(DEVICE)
    x = _view_of(random_tensor(60, 256, seed=3, dtype=torch.float32) / 16)
    whole = cuda.experts(x, weights, ids, packed)
    in_float = [
        expert._replace(gate_up_bias=expert.gate_up_bias.float(), down_bias=expert.down_bias.float())
        if expert.gate_up_bias is not None and expert.down_bias is not None
        else expert
        for expert in each
    ]
    wide = reference.pack_experts(in_float, num_experts=3, dtype=torch.float32)
    expected = reference.experts(x, weights, ids, wide)
    assert (whole - expected).abs().max() <= 0.005 * expected.abs().max()  # an input may round to the next integer
    for rows in (slice(0, 1), slice(3, 25)):
        assert torch.equal(cuda.experts(x[rows], weights[rows], ids[rows], packed), whole[rows])


def test_experts_with_an_order_of_inputs_stay_packed() -> None:
    def ordered(expert: ops.ExpertWeights, seed: int) -> ops.ExpertWeights:
        orders = [torch.randperm(256, generator=torch.Generator().manual_seed(seed + k)).to(DEVICE) for k in (0, 1)]
        halves = [half._replace(order=orders[0]) for half in expert.gate_up if isinstance(half, QuantizedWeight)]
        assert isinstance(expert.down, QuantizedWeight)
        return expert._replace(gate_up=halves, down=expert.down._replace(order=orders[1]))

    each = [ordered(_expert(FORMS["AWQ"], 10 * index), index) for index in range(3)]
    packed = cuda.pack_experts(each, num_experts=3, dtype=torch.float16)
    assert isinstance(packed, QuantizedExperts)
    ids, weights = random_routing(5, 2, 3), torch.rand(5, 2).to(DEVICE)
    x = random_tensor(5, 256, seed=3, dtype=torch.float16) / 16
    wide = reference.pack_experts(each, num_experts=3, dtype=torch.float64)
    got = cuda.experts(x, weights, ids, packed)
    assert_near(got, reference.experts(x.double(), weights, ids, wide), tolerance=1e-4)


@pytest.mark.thorough  # once packed they are multiplied like those of files
@pytest.mark.parametrize(("options", "bits"), [({"bits": 8}, 8), ({"bits": 4}, 4), ({"is_fp8": True}, 8)])
def test_plain_experts_are_rounded(options: dict[str, Any], bits: int) -> None:
    plain = [ops.ExpertWeights([gate_up], down) for gate_up, down in matrices(2, torch.float16, hidden=128, inner=128)]
    packed = cuda.pack_experts(plain, num_experts=2, dtype=torch.float16, **options)
    assert isinstance(packed, QuantizedExperts)
    assert packed.down.bits == bits
    rounded = [quantized_linear.widen(part, torch.float64) for part in (packed.gate_up, packed.down)]
    gate_up, down = (part.view(2, -1, part.shape[1]) for part in rounded)
    each = [ops.ExpertWeights([gate_up[index]], down[index]) for index in range(2)]
    wide = reference.pack_experts(each, num_experts=2, dtype=torch.float64)
    x, ids, weights = random_tensor(3, 128, seed=3, dtype=torch.float16), random_routing(3, 1, 2), torch.ones(3, 1)
    got = cuda.experts(x, weights.to(DEVICE), ids, packed)
    # Beside e4m3 inputs become e4m3, too (test_fp8_experts.py): 3 bits behind the point.
    expected = reference.experts(x.double(), weights.to(DEVICE), ids, wide)
    assert_near(got, expected, tolerance=0.1 if "is_fp8" in options else 0.0)
    difference = (gate_up[0] - plain[0].gate_up[0].double()).abs().max()
    assert 0 < difference < (0.2 if bits == 4 else 0.03)
