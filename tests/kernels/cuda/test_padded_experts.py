"""Tokens that only pad a CUDA graph go to no expert; the other tokens keep their bits."""

from typing import Any

import pytest
import torch
from kernel_cases import DEVICE, random_tensor
from quantized_cases import FORMS, random_weight
from torch import Tensor

from splitfuse.kernels import ops, reference
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda import moe, moe_route
from splitfuse.kernels.cuda.device_info import H100

pytestmark = [
    pytest.mark.sampled(4),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # from NumPy, under the interpreter
]

NUM_EXPERTS, TOP_K, HIDDEN, INNER = 6, 2, 128, 128
# Real tokens and tokens of the graph: not grouped, grouped at once, grouped in chunks of 1,024 pairs.
GRAPHS = [(2, 3), (33, 40), (600, 640)]


def _ids(num_tokens: int, num_experts: int, top_k: int, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    chosen = [torch.randperm(num_experts, generator=generator)[:top_k] for _ in range(num_tokens)]
    return torch.stack(chosen).to(torch.int32).to(DEVICE)


def _packed(form: str, dtype: torch.dtype) -> Any:
    """Return experts; the last one's weights are NaN if they can be."""
    each = []
    for expert in range(NUM_EXPERTS):
        if form == "16 bits":
            gate_up, down = (
                random_tensor(*shape, seed=expert, dtype=dtype) / 16 for shape in ((2 * INNER, HIDDEN), (HIDDEN, INNER))
            )
            if expert == NUM_EXPERTS - 1:
                gate_up.fill_(float("nan"))
            each.append(ops.ExpertWeights([gate_up], down))
            continue
        gate_up_8, down_8 = (
            random_weight(FORMS[form], *shape, seed=expert).to(torch.device(DEVICE))
            for shape in ((2 * INNER, HIDDEN), (HIDDEN, INNER))
        )
        if form == "AWQ":  # with an order of inputs, which is an expert's own
            order = torch.randperm(HIDDEN, generator=torch.Generator().manual_seed(expert)).to(DEVICE)
            gate_up_8, down_8 = gate_up_8._replace(order=order), down_8._replace(order=order)
        if form == "int8 per channel":
            gate_up_8, down_8 = (weight._replace(rounds_inputs=True) for weight in (gate_up_8, down_8))
        each.append(ops.ExpertWeights([gate_up_8], down_8))
    return cuda.pack_experts(each, num_experts=NUM_EXPERTS, dtype=dtype)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("weighs_inputs", [False, True])
@pytest.mark.parametrize("form", ["16 bits", "float8 in blocks", "AWQ", "int8 per channel"])
@pytest.mark.parametrize(("num_real", "num_tokens"), GRAPHS[:2])
def test_padding_reads_no_expert(num_real: int, num_tokens: int, form: str, weighs_inputs: bool) -> None:
    _check(num_real, num_tokens, form, weighs_inputs)


@pytest.mark.thorough  # the chunks in which its pairs are grouped are tested below
def test_padding_of_many_tokens_reads_no_expert() -> None:
    _check(*GRAPHS[2], "16 bits", False)


def _check(num_real: int, num_tokens: int, form: str, weighs_inputs: bool) -> None:
    packed = _packed(form, torch.float16)._replace(args=ops.ExpertArgs(weighs_inputs=weighs_inputs))
    wide = torch.full((num_tokens, HIDDEN + 24), float("nan"), dtype=torch.float16, device=DEVICE)
    wide[:, 8 : HIDDEN + 8] = random_tensor(num_tokens, HIDDEN, seed=3, dtype=torch.float16) / 16
    x, weights = wide[:, 8 : HIDDEN + 8], torch.rand(num_tokens, TOP_K).to(DEVICE)
    ids = _ids(num_tokens, NUM_EXPERTS - 1, TOP_K)
    whole = moe.experts(x, weights, ids, packed)
    ids[num_real:] = -1
    x[num_real:] = float("nan")
    got = moe.experts(x, weights, ids, packed)
    assert got.isfinite().all()
    assert torch.equal(got[:num_real], whole[:num_real])
    assert not got[num_real:].any()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("num_real", "num_tokens"), GRAPHS)
def test_tiles_hold_no_pair_of_the_padding(num_real: int, num_tokens: int) -> None:
    ids = _ids(num_tokens, 40, TOP_K)
    ids[num_real:] = -1
    tiles = moe_route.group_by_expert(ids, num_experts=40, block_m=16)
    if tiles.pairs is None:
        assert tiles.experts.tolist() == ids.flatten().tolist()
        return
    assert (num_tokens * TOP_K > moe_route.BLOCK_P) == (num_tokens == 640)
    used = tiles.experts >= 0
    assert set(tiles.experts[used].tolist()) == set(ids[:num_real].flatten().tolist())
    pairs = tiles.pairs.view(-1, 16)[used].flatten().tolist()
    assert sorted(pair for pair in pairs if pair < num_tokens * TOP_K) == list(range(num_real * TOP_K))


@pytest.mark.parametrize(
    "args", [ops.RouteArgs(2, True), ops.RouteArgs(2, False), ops.RouteArgs(3, True, is_sigmoid=True)], ids=str
)
def test_the_router_chooses_experts_for_real_tokens_alone(args: ops.RouteArgs) -> None:
    logits = random_tensor(7, 6, seed=2, dtype=torch.float32)
    slots = torch.tensor([5, 0, -1, 2**33, 9, -1, -1], device=DEVICE)
    expected, expected_ids = cuda.route(logits, args)
    weights, ids = cuda.route(logits, args, slots)
    assert ids.dtype == torch.int32
    assert torch.equal(ids, expected_ids.where(slots[:, None] >= 0, -1))
    assert torch.equal(weights[slots >= 0], expected[slots >= 0])
    assert torch.equal(reference.route(logits, args)[1][slots >= 0], ids[slots >= 0])


@pytest.mark.parametrize(("num_real", "num_tokens"), [(5, 8), pytest.param(33, 40, marks=pytest.mark.thorough)])
def test_qwen3_30b_a3b_reads_fewer_experts(num_real: int, num_tokens: int) -> None:
    """Count the tiles of work for all tokens and for the real ones; padding is equal tokens, which choose alike."""
    num_experts, top_k = 128, 8
    ids = _ids(num_tokens, num_experts, top_k)
    ids[num_real:] = ids[num_real]
    block_m = moe.choose_config(ids.numel(), num_experts, 2, H100).BLOCK_M
    experts = []
    for _ in range(2):
        tiles = moe_route.group_by_expert(ids, num_experts=num_experts, block_m=block_m)
        experts.append(set(tiles.experts.tolist()) - {-1})
        ids[num_real:] = -1
    before, after = experts
    assert after == set(ids[:num_real].flatten().tolist())
    assert after <= before
    assert len(before) - len(after) == (6 if num_tokens == 8 else 0)
