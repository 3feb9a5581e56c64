"""The CUDA backend as a whole, called through ops like the engine does."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kernel_cases import (
    DEVICE,
    NUM_RANDOM_CASES,
    UNMAPPED,
    AttentionCase,
    assert_near,
    random_attention_case,
    random_tensor,
)
from torch import Tensor

from splitfuse.engine.execution.models.llama4 import chunked
from splitfuse.kernels import ops, reference
from splitfuse.kernels.cuda import quantized_linear
from splitfuse.kernels.cuda.attention_decode import decode_planner
from splitfuse.kernels.quantize import quantize

pytestmark = pytest.mark.sampled(12)


@pytest.fixture(autouse=True)
def _cuda_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ops._BACKEND_OF_DEVICE, "cpu", "cuda")


def check(case: AttentionCase) -> None:
    assert_near(ops.paged_attention(*case.build(), case.args), case.expected(), tolerance=case.tolerance)


@pytest.mark.parametrize(
    "case",
    [
        AttentionCase((1, 1, 9, 40), (0, 33, 5, 0)),
        AttentionCase((1, 1), (0, 33)),
        AttentionCase((9, 40), (5, 0)),
        AttentionCase((1, 30), (64, 64), sliding_window=20, group=7, block_size=32),
    ],
    ids=str,
)
def test_mixed_rows(case: AttentionCase) -> None:
    check(case)


@pytest.mark.parametrize("seed", range(NUM_RANDOM_CASES))
def test_random_mixes(seed: int) -> None:
    check(random_attention_case(2000 + seed, num_decodes=4, num_prefills=3))


@pytest.mark.parametrize("query_lens", [(1, 1, 1), (1, 1, 9, 40)])
def test_chunks_of_positions_do_not_follow_the_rows_work_lists(query_lens: tuple[int, ...]) -> None:
    case = AttentionCase(query_lens, (0, 33, 65, 20)[: len(query_lens)])
    q, cache, ragged = case.build()
    layers = [(0, case.num_kv_heads, case.head_dim)]
    planner = decode_planner(q.device, layers, dtype=q.dtype, cache_dtype=cache.keys.dtype)
    plans = planner(ragged.query_start_loc.cpu().numpy(), ragged.seq_lens.cpu().numpy())
    assert plans is not None
    planned = ragged._replace(plans={name: torch.from_numpy(plan).to(DEVICE) for name, plan in plans.items()})
    in_chunks = chunked(planned, chunk=32, block_size=case.block_size)
    expected = reference.paged_attention(
        q.double(), ops.CacheView(cache.keys.double(), cache.values.double()), in_chunks, case.args
    )
    assert_near(ops.paged_attention(q, cache, in_chunks, case.args), expected)


def padded(batch: tuple[Tensor, ops.CacheView, ops.RaggedBatch], *, num_tokens: int) -> tuple[Any, ...]:
    """Pad a batch for a graph of mixed steps: a row of length 0 gets the remaining tokens, three rows get none."""
    q, cache, ragged = batch
    filling = torch.full((num_tokens, *q.shape[1:]), float("nan"), dtype=q.dtype, device=q.device)
    starts = F.pad(ragged.query_start_loc, (0, 4), value=len(q) + num_tokens)
    tables = F.pad(ragged.block_tables, (0, 0, 0, 4), value=UNMAPPED)
    longest = 4096 if num_tokens % 2 else 255  # 4096 is split, 255 is not
    whole = ops.RaggedBatch(starts, F.pad(ragged.seq_lens, (0, 4)), tables, None, len(q) + num_tokens, longest)
    return torch.cat((q, filling)), cache, whole


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 100])
@pytest.mark.parametrize(
    "case",
    [
        AttentionCase((1, 1, 9, 40), (0, 33, 5, 0)),
        AttentionCase((1, 1), (0, 33), num_kv_heads=1, is_cache_fp8=True),
        AttentionCase((9, 40), (5, 0), sliding_window=20, num_kv_heads=1, head_dim=80),
        AttentionCase((1, 30), (64, 64), sliding_window=20, softcap=5.0, group=7, block_size=32),
    ],
    ids=str,
)
def test_rows_of_a_graph_that_the_host_does_not_know(case: AttentionCase, num_tokens: int) -> None:
    out = ops.paged_attention(*padded(case.build(), num_tokens=num_tokens), case.args)
    num_real = sum(case.query_lens)
    assert not out[num_real:].any()
    tolerance = 2e-3 if case.is_cache_fp8 else case.tolerance
    assert_near(out[:num_real], case.expected(), tolerance=tolerance)


def test_ops_reach_the_kernels() -> None:
    x, weight = random_tensor(3, 64, seed=1, dtype=torch.float16), random_tensor(64, seed=2, dtype=torch.float16)
    assert_near(ops.rms_norm(x, weight, eps=1e-6), reference.rms_norm(x.double(), weight.double(), eps=1e-6))
    assert_near(ops.silu_mul(x), reference.silu_mul(x.double()))
    cache = random_tensor(3, 1, 16, 64, seed=3, dtype=torch.float16)
    ops.copy_blocks([cache], torch.tensor([0], device=DEVICE), torch.tensor([2], device=DEVICE))
    assert torch.equal(cache[2], cache[0])


def test_experts_from_the_router_on() -> None:
    x, logits = random_tensor(5, 32, seed=1, dtype=torch.float32), random_tensor(5, 6, seed=2, dtype=torch.float32)
    gate_up, down = (
        random_tensor(6, 48, 32, seed=3, dtype=torch.float32),
        random_tensor(6, 32, 24, seed=4, dtype=torch.float32),
    )
    each = [ops.ExpertWeights([a], b) for a, b in zip(gate_up / 6, down / 5, strict=True)]
    packed = ops.pack_experts(iter(each), num_experts=6, dtype=x.dtype, device=x.device)
    got = ops.experts(x, *ops.route(logits, ops.RouteArgs(2, True)), packed)
    routing = reference.route(logits.double(), ops.RouteArgs(2, True))
    wide = [ops.ExpertWeights([expert.gate_up[0].double()], expert.down.double()) for expert in each]
    assert_near(
        got, reference.experts(x.double(), *routing, reference.pack_experts(wide, num_experts=6, dtype=torch.float64))
    )


@pytest.mark.parametrize("args", [ops.RouteArgs(3, True, is_sigmoid=True), ops.RouteArgs(2, False, scale=2.5)], ids=str)
def test_routing_in_other_ways(args: ops.RouteArgs) -> None:
    logits = random_tensor(5, 6, seed=2, dtype=torch.float32)
    expected, expected_ids = reference.route(logits.double(), args)
    weights, ids = ops.route(logits, args)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=1e-6)


def test_quantized_experts_stay_packed() -> None:
    gate_up, down = (random_tensor(*shape, seed=3, dtype=torch.float32) for shape in ((48, 32), (32, 24)))
    weights = ops.ExpertWeights([quantize(gate_up, 8)], quantize(down, 8))
    packed = ops.pack_experts([weights], num_experts=1, dtype=torch.float32, device=gate_up.device)
    for part, weight in ((packed.gate_up, gate_up), (packed.down, down)):
        assert torch.equal(quantized_linear.widen(part, torch.float32), quantize(weight, 8).dequantized())


@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(has_bias: bool) -> None:
    x, weight = random_tensor(3, 32, seed=1, dtype=torch.float32), random_tensor(8, 32, seed=2, dtype=torch.float32)
    bias = random_tensor(8, seed=3, dtype=torch.float32) if has_bias else None
    expected = x @ weight.T + (0 if bias is None else bias)
    torch.testing.assert_close(ops.linear(x, ops.pack_linear(weight, bias)), expected, rtol=1e-4, atol=1e-4)


def test_a_cpu_user_never_imports_triton() -> None:
    code = """
import sys, torch
before = "triton" in sys.modules  # by torch itself, where there is a GPU
from splitfuse.kernels import ops
for backend in ("cpu", "reference"):
    ops._BACKEND_OF_DEVICE["cpu"] = backend
    ops.silu_mul(torch.ones(1, 4))
sys.exit("triton" in sys.modules and not before)
"""
    # A GPU's machine has no installation, but a path.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
