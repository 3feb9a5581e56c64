from dataclasses import replace

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
from splitfuse.kernels.cuda.device_info import H100
from splitfuse.kernels.cuda.tile_configs import min_tokens_per_split

pytestmark = pytest.mark.sampled(3)


def check(case: AttentionCase, *, num_splits: int | None = None, min_tokens: int = 16, tolerance: float = 0.0) -> None:
    q, cache, ragged = case.build()
    out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=q.device)
    attention_decode.decode_attention(q, cache, ragged, case.args, out, num_splits=num_splits, min_tokens=min_tokens)
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


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_caches_of_e4m3(dtype: torch.dtype, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check caches of e4m3. Dots are in float16, so bfloat16 can be tested here. GPUs before 8.9 have no e4m3."""
    if DEVICE == "cpu":
        monkeypatch.setattr(attention_decode, "device_info", lambda device: H100._replace(capability=capability))
        monkeypatch.setattr(
            device_info, "USES_DEPENDENT_LAUNCH", False
        )  # the interpreter has no other kernel to wait for
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


@pytest.mark.parametrize("num_splits", [1, 4])
def test_one_grid_serves_any_length(num_splits: int) -> None:
    """Fix the grid like a CUDA graph, then change lengths; rows may be padding of no tokens."""
    q, cache, ragged = AttentionCase((1, 1, 1), (60, 200, 90)).build()
    args = ops.AttentionArgs(0.1)
    ragged = ragged._replace(max_seq_len=10**6)
    for lengths in ((61, 201, 91), (1, 200, 17), (33, 0, 0)):
        now = ragged._replace(seq_lens=torch.tensor(lengths, dtype=torch.int32, device=q.device))
        out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=q.device)
        attention_decode.decode_attention(q, cache, now, args, out, num_splits=num_splits, min_tokens=32)
        assert not out[now.seq_lens == 0].any()
        live = now.seq_lens > 0
        assert_near(out[live], reference.paged_attention(q.double(), in_double(cache), now, args)[live])


def test_long_row_is_split_by_itself() -> None:
    case = AttentionCase((1,), (1500,), group=1, num_kv_heads=1)
    assert attention_decode.choose_num_splits(1, 1501, H100) == 5
    check(case)


@pytest.mark.parametrize("seed", range(NUM_RANDOM_CASES))
def test_random_shapes(seed: int) -> None:
    case = random_attention_case(seed, num_decodes=5, num_prefills=0)
    check(case, num_splits=[None, 1, 2, 5][seed % 4])


@pytest.mark.parametrize("num_programs", [1, 8, 100, 256, 264, 2048])
@pytest.mark.parametrize("num_tokens", [1, 255, 511, 512, 4096, 65536, 10**6])
def test_number_of_splits(num_programs: int, num_tokens: int) -> None:
    splits = attention_decode.choose_num_splits(num_programs, num_tokens, H100)
    assert 1 <= splits <= attention_decode.MAX_SPLITS
    if splits > 1:
        assert num_tokens // splits >= min_tokens_per_split(H100.capability)
        assert num_programs * splits <= attention_decode.PROGRAMS_PER_MULTIPROCESSOR * H100.num_multiprocessors
