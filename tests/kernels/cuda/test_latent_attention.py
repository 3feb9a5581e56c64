import pytest
import torch
from kernel_cases import DOT_DTYPES, assert_near
from latent_cases import DEEPSEEK, GLM, TINY, Sizes, World

from splitfuse.kernels import reference
from splitfuse.kernels.cuda.latent_attention import latent_attention

pytestmark = pytest.mark.sampled(12)

ROWS = [(0, 129, 130), (1, 16, 17), (2, 40, 65), (3, 0, 3)]  # two rows of one token, two chunks
LENGTHS = [130, 17, 65, 3]


def check(
    sizes: Sizes,
    dtype: torch.dtype,
    *,
    rows: list[tuple[int, int, int]] = ROWS,
    num_splits: int | None = None,
    is_ragged: bool = False,
    is_fp8: bool = False,
    block_size: int = 16,
) -> None:
    world = World(sizes, LENGTHS, dtype, block_size=block_size)
    wide = world.cache(torch.float64)
    for row, length in enumerate(LENGTHS):  # fill the cache
        step = world.step([(row, 0, length)], dtype=torch.float64)
        reference.latent_and_cache(*step[:5], world.cos_sin, world.key_up.double(), wide)
    cache = wide._replace(keys=wide.keys.to(dtype))
    step = world.step(rows, dtype=torch.float64)
    q = reference.latent_and_cache(*step[:5], world.cos_sin, world.key_up.double(), wide).to(dtype)
    if is_fp8:
        cache = cache._replace(keys=cache.keys.to(torch.float8_e4m3fn))
        wide = wide._replace(keys=cache.keys.float().double())
    else:
        wide = wide._replace(keys=cache.keys.double())
    wide = wide._replace(values=wide.keys)
    expected = reference.paged_attention(q.double(), wide, step.ragged, world.args)
    ragged = step.ragged._replace(num_decodes=None) if is_ragged else step.ragged
    got = latent_attention(q, cache, ragged, world.args, num_splits=num_splits, min_tokens=16)
    assert_near(got, expected, tolerance=4e-3 if is_fp8 else 0.0)


@pytest.mark.parametrize("dtype", DOT_DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [TINY, DEEPSEEK, GLM], ids=["tiny", "DeepSeek", "GLM"])
def test_sizes(sizes: Sizes, dtype: torch.dtype) -> None:
    check(sizes, dtype)


@pytest.mark.parametrize("is_ragged", [False, True])
@pytest.mark.parametrize("num_splits", [1, 2, 7])
def test_splits(num_splits: int, is_ragged: bool) -> None:
    check(TINY, torch.float16, num_splits=num_splits, is_ragged=is_ragged)


@pytest.mark.parametrize("block_size", [4, 64])
def test_block_sizes(block_size: int) -> None:
    check(TINY, torch.float16, block_size=block_size)


def test_caches_of_e4m3() -> None:
    check(TINY, torch.float16, is_fp8=True)
    check(TINY, torch.float16, is_fp8=True, num_splits=3)


CHUNKS = [(0, 10, 30), (1, 0, 17), (2, 3, 5), (3, 0, 3)]


@pytest.mark.parametrize("rows", [ROWS[:2], ROWS[2:], CHUNKS], ids=["decode", "two chunks", "chunks"])
def test_rows_of_one_kind(rows: list[tuple[int, int, int]]) -> None:
    check(Sizes(71, 48, 12, 16, 20), torch.float16, rows=rows)


def test_padding_rows_get_zeros() -> None:
    """Like a CUDA graph: a row of 0 tokens has a query token."""
    world = World(TINY, [40, 9], torch.float16)
    step = world.step([(0, 39, 40), (1, 8, 9)])
    lines = torch.zeros_like(world.cache(torch.float16).keys)
    cache = world.cache(torch.float16)._replace(keys=lines, values=lines)
    ragged = step.ragged._replace(seq_lens=torch.tensor([40, 0], dtype=torch.int32, device=lines.device))
    q = torch.ones(2, TINY.num_heads, TINY.rank + TINY.rotary, dtype=torch.float16, device=lines.device)
    for num_splits in (1, 3):
        got = latent_attention(q, cache, ragged, world.args, num_splits=num_splits, min_tokens=16)
        assert (got[1] == 0).all()
