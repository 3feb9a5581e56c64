import pytest
import torch
from kernel_cases import DTYPES, TOLERANCES, assert_near
from latent_cases import DEEPSEEK, GLM, TINY, Sizes, World

from splitfuse.kernels import reference
from splitfuse.kernels.cuda import latent_queries as queries

pytestmark = pytest.mark.sampled(2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [TINY, DEEPSEEK, GLM], ids=["tiny", "DeepSeek", "GLM"])
def test_queries_and_lines(sizes: Sizes, dtype: torch.dtype) -> None:
    world = World(sizes, [9], dtype)
    step, wide_step = (world.step([(0, 0, 9)], dtype=kind) for kind in (dtype, torch.float64))
    step.slots[2] = wide_step.slots[2] = -1
    cache, wide = world.cache(dtype), world.cache(torch.float64)
    got = queries.latent_and_cache(*step[:5], world.cos_sin, queries.pack_heads(world.key_up), cache)
    expected = reference.latent_and_cache(*wide_step[:5], world.cos_sin, world.key_up.double(), wide)
    assert_near(got, expected, tolerance=2 * TOLERANCES[dtype])
    torch.testing.assert_close(
        cache.keys.double(), wide.keys, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype], equal_nan=True
    )


def test_lines_of_e4m3() -> None:
    world = World(TINY, [9], torch.float16)
    step, cache = world.step([(0, 0, 9)]), world.cache(torch.float8_e4m3fn)
    wide = world.cache(torch.float32)
    queries.latent_and_cache(*step[:5], world.cos_sin, world.key_up, cache)
    reference.latent_and_cache(
        *world.step([(0, 0, 9)], dtype=torch.float32)[:5], world.cos_sin, world.key_up.float(), wide
    )
    torch.testing.assert_close(cache.keys.float(), wide.keys, atol=0.02, rtol=0.07, equal_nan=True)


def test_products_of_heads() -> None:
    world = World(DEEPSEEK, [5], torch.float32)
    x = torch.randn(3, DEEPSEEK.num_heads, DEEPSEEK.rank, device=world.value_up.device)
    got = queries.head_linear(x, queries.pack_heads(world.value_up))
    assert_near(got, reference.head_linear(x.double(), world.value_up.double()), tolerance=1e-4)
