from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_cases import (
    DEVICE,
    DOT_DTYPES,
    DTYPES,
    NUM_RANDOM_CASES,
    AttentionCase,
    assert_near,
    in_double,
    random_attention_case,
)

from splitfuse.kernels import ops, reference
from splitfuse.kernels.cuda import attention_decode, device_info
from splitfuse.kernels.cuda.attention_decode import DecodePlanner, PlanKind
from splitfuse.kernels.cuda.device_info import H100

pytestmark = pytest.mark.sampled(12)


def check(case: AttentionCase, *, num_splits: int | None = None, min_tokens: int = 16, tolerance: float = 0.0) -> None:
    q, cache, ragged = case.build()
    out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=q.device)
    num_programs = num_splits and num_splits * len(ragged.seq_lens)
    attention_decode.decode_attention(
        q, cache, ragged, case.args, out, num_programs=num_programs, min_tokens=min_tokens
    )
    tolerance = max(tolerance, case.tolerance)
    assert_near(out[: ragged.num_decodes], case.expected()[: ragged.num_decodes], tolerance=tolerance)
    assert out[ragged.num_decodes :].isnan().all()


LENGTHS = (1, 1, 1, 1), (0, 15, 16, 90)


@pytest.mark.parametrize("dtype", DOT_DTYPES, ids=str)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 6, 7, 8, 16, 20, 71])
def test_groups(group: int, dtype: torch.dtype) -> None:
    check(AttentionCase(*LENGTHS, group=group, dtype=dtype))


@pytest.mark.parametrize("block_size", [4, 16, 32, 64, 128])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_head_dims_and_block_sizes(head_dim: int, block_size: int) -> None:
    check(AttentionCase(*LENGTHS, head_dim=head_dim, block_size=block_size))


@pytest.mark.parametrize("window", [1, 16, 17, 64, 1000])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_sliding_windows(window: int, num_splits: int) -> None:
    check(AttentionCase((1, 1, 1), (0, 40, 200), sliding_window=window, group=3), num_splits=num_splits)


@pytest.mark.parametrize("softcap", [0.3, 5.0, 50.0])
@pytest.mark.parametrize("num_splits", [1, 4])
def test_soft_caps(softcap: float, num_splits: int) -> None:
    case = AttentionCase((1, 1), (40, 200), softcap=softcap, sliding_window=90, group=3, dtype=torch.float32)
    check(case, num_splits=num_splits)


@pytest.mark.sampled(1)  # bytes are read in two ways
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_caches_of_e4m3(dtype: torch.dtype, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dots of e4m3 caches are in float16, so bfloat16 can be tested here. GPUs before 8.9 lack e4m3."""
    if DEVICE == "cpu":
        monkeypatch.setattr(attention_decode, "device_info", lambda device: H100._replace(capability=capability))
        monkeypatch.setattr(
            device_info, "USES_DEPENDENT_LAUNCH", False
        )  # under the interpreter there is no other kernel to wait for
    case = AttentionCase((1, 1, 1), (0, 40, 200), group=3, dtype=dtype, is_cache_fp8=True)
    check(replace(case, head_dim=80), num_splits=4, tolerance=2e-3)
    check(replace(case, softcap=5.0, sliding_window=90, is_cache_joint=True), num_splits=1, tolerance=2e-3)


@pytest.mark.parametrize("num_splits", [1, 2, 7, 16, 64])
@pytest.mark.parametrize("context_lens", [(0, 1, 63), (300, 5), (511, 512, 40)], ids=str)
def test_splits(context_lens: tuple[int, ...], num_splits: int) -> None:
    check(AttentionCase((1,) * len(context_lens), context_lens, num_kv_heads=1), num_splits=num_splits)


def test_rows_of_prompts_are_left_alone() -> None:
    check(AttentionCase((1, 1, 5), (3, 30, 8)), num_splits=2)


@pytest.mark.parametrize("min_tokens", [16, 64, 256])
def test_short_rows_leave_spans_empty(min_tokens: int) -> None:
    check(AttentionCase((1, 1, 1), (0, 130, 300)), num_splits=16, min_tokens=min_tokens)


@pytest.mark.parametrize("num_programs", [1, 4])
def test_one_launch_serves_any_length(num_programs: int) -> None:
    """Like a CUDA graph: the launch is fixed, then lengths and plans change, and rows may be padding of 0 tokens."""
    q, cache, ragged = AttentionCase((1, 1, 1), (60, 200, 90)).build()
    kind = PlanKind(0, num_programs, attention_decode.choose_config(2, 64, 2, H100).BLOCK_N)
    args, planner = ops.AttentionArgs(0.1), DecodePlanner((kind,), 32)
    sizes = set()
    for lengths in ((61, 201, 91), (1, 200, 17), (33, 0, 0)):
        plans = planner(np.arange(4), np.array(lengths))
        assert plans is not None
        sizes.add(len(plans[kind.name]))
        now = ragged._replace(
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=q.device),
            plans={name: torch.from_numpy(plan).to(q.device) for name, plan in plans.items()},
        )
        out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=q.device)
        attention_decode.decode_attention(q, cache, now, args, out, num_programs=num_programs)
        assert not out[now.seq_lens == 0].any()
        live = now.seq_lens > 0
        assert_near(out[live], reference.paged_attention(q.double(), in_double(cache), now, args)[live])
    assert len(sizes) == 1


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize(
    "case", [AttentionCase((1, 1), (40, 90), sliding_window=30, is_cache_fp8=is_fp8) for is_fp8 in (False, True)]
)
def test_the_engines_lists_are_found(case: AttentionCase, is_exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_info.EXACT, "is_on", is_exact)
    q, cache, ragged = case.build()
    layers = [(window, case.num_kv_heads, case.head_dim) for window in (0, 30)]
    planner = attention_decode.decode_planner(q.device, layers, dtype=q.dtype, cache_dtype=cache.keys.dtype)
    plans = planner(ragged.query_start_loc.cpu().numpy(), ragged.seq_lens.cpu().numpy())
    assert plans is not None
    ragged = ragged._replace(plans={name: torch.from_numpy(plan).to(DEVICE) for name, plan in plans.items()})
    out = torch.empty_like(q)
    attention_decode.decode_attention(q, cache, ragged, case.args, out)
    assert_near(out, case.expected(), tolerance=2e-3)


def test_rows_of_one_token_are_found_among_others() -> None:
    """A mixed batch's graph: the launch does not know which rows are decodes."""
    case = AttentionCase((1, 5, 1, 3), (70, 8, 200, 4))
    q, cache, ragged = case.build()
    out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=q.device)
    attention_decode.decode_attention(q, cache, ragged._replace(num_decodes=None), case.args, out)
    assert_near(out[[0, 6]], case.expected()[[0, 6]])
    assert out[1:6].isnan().all()


@pytest.mark.parametrize("seed", range(NUM_RANDOM_CASES))
def test_random_shapes(seed: int) -> None:
    case = random_attention_case(seed, num_decodes=5, num_prefills=0)
    check(case, num_splits=[None, 1, 2, 5][seed % 4])
