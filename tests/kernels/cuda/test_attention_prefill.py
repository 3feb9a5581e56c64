from dataclasses import replace

import pytest
import torch
from kernel_cases import (
    DEVICE,
    DOT_DTYPES,
    DTYPES,
    INTERPRETED,
    LONGEST,
    NUM_RANDOM_CASES,
    AttentionCase,
    assert_near,
    random_attention_case,
)

from splitfuse.kernels.cuda import attention_prefill
from splitfuse.kernels.cuda.attention_prefill import Config
from splitfuse.kernels.cuda.device_info import H100, DeviceInfo

pytestmark = pytest.mark.sampled(12)

WIDE, NARROW, SHORT = Config(128, 64, 8, 3), Config(64, 32, 4, 3), Config(16, 16, 4, 4)


def check(case: AttentionCase, *, config: Config | None = None, tolerance: float = 0.0) -> None:
    q, cache, ragged = case.build()
    out = torch.full(q.shape, float("nan"), dtype=q.dtype, device=q.device)
    attention_prefill.prefill_attention(q, cache, ragged, case.args, out, config=config)
    tolerance = max(tolerance, case.tolerance)
    assert_near(out[ragged.num_decodes :], case.expected()[ragged.num_decodes :], tolerance=tolerance)
    assert out[: ragged.num_decodes].isnan().all()


LENGTHS = (2, 7, LONGEST), (0, 100, 30)
# Tiles of float32 are 16 by 16.
FEW = (2, 7, 20), (0, 40, 9)


@pytest.mark.parametrize("dtype", DOT_DTYPES, ids=str)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 6, 7, 8, 16, 20, 71])
def test_groups(group: int, dtype: torch.dtype) -> None:
    lengths = FEW if INTERPRETED and dtype == torch.float32 else LENGTHS
    check(AttentionCase(*lengths, group=group, num_kv_heads=1, dtype=dtype))


@pytest.mark.parametrize("block_size", [4, 16, 32, 64, 128])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_head_dims_and_block_sizes(head_dim: int, block_size: int) -> None:
    check(AttentionCase(*LENGTHS, head_dim=head_dim, block_size=block_size))


@pytest.mark.parametrize("config", [WIDE, NARROW, SHORT], ids=str)
@pytest.mark.parametrize("window", [0, 1, 16, 31, 64, 1000])
def test_sliding_windows(window: int, config: Config) -> None:
    check(AttentionCase((3, 20, 33), (0, 150, 63), sliding_window=window, group=3, num_kv_heads=1), config=config)


@pytest.mark.parametrize("config", [WIDE, NARROW, SHORT], ids=str)
@pytest.mark.parametrize(("window", "lookahead"), [(0, 2**30), (33, 32), (6, 5), (0, 17)])
def test_later_tokens(window: int, lookahead: int, config: Config) -> None:
    """Whole rows, like an encoder's."""
    case = AttentionCase((3, 20, 33, LONGEST), (0, 0, 0, 0), sliding_window=window, lookahead=lookahead)
    check(case, config=config)


@pytest.mark.parametrize("softcap", [0.3, 5.0, 50.0])
@pytest.mark.parametrize("window", [0, 40])
def test_soft_caps(softcap: float, window: int) -> None:
    case = AttentionCase((3, 20, 33), (0, 60, 30), softcap=softcap, sliding_window=window, dtype=torch.float32)
    check(case)


@pytest.mark.sampled(1)  # bytes are read in two ways
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_caches_of_e4m3(dtype: torch.dtype, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(attention_prefill, "device_info", lambda device: H100._replace(capability=capability))
    case = AttentionCase((3, 20), (0, 90), group=3, num_kv_heads=2, dtype=dtype, is_cache_fp8=True)
    check(replace(case, head_dim=80, sliding_window=40), config=NARROW, tolerance=2e-3)
    check(replace(case, softcap=5.0, is_cache_joint=True), config=SHORT, tolerance=2e-3)


@pytest.mark.parametrize("config", [WIDE, NARROW, SHORT], ids=str)
@pytest.mark.parametrize("query_lens", [(16, 16, 16), (2,) * 20, (2, LONGEST + 60, 3), (15, 17, 2, 33)], ids=str)
def test_every_query_block_finds_its_row(query_lens: tuple[int, ...], config: Config) -> None:
    context_lens = tuple(7 * row for row in range(len(query_lens)))
    check(AttentionCase(query_lens, context_lens, group=4, num_kv_heads=1), config=config)


def test_rows_of_one_token_are_left_alone() -> None:
    check(AttentionCase((1, 1, 1, 5, 20), (3, 30, 1, 8, 0)))


@pytest.mark.parametrize("seed", range(NUM_RANDOM_CASES))
def test_random_shapes(seed: int) -> None:
    case = random_attention_case(1000 + seed, num_decodes=2, num_prefills=4)
    if max(case.query_lens) > 1:
        check(case, config=[None, None, NARROW, SHORT][seed % 4])


@pytest.mark.parametrize("capability", [80, 89, 90, 100, 120])
def test_small_work_takes_small_blocks(capability: int) -> None:
    gpu = DeviceInfo(capability, H100.num_multiprocessors, H100.shared_memory)
    heads = 32
    assert attention_prefill.choose_config(4 * heads, 4 * 4, 128, 2, gpu).BLOCK_M == 16
    assert attention_prefill.choose_config(256 * heads, 256 * 4, 128, 2, gpu).BLOCK_M == 64
    assert attention_prefill.choose_config(2048 * heads, 2048 * 4, 128, 2, gpu).BLOCK_M == 128
