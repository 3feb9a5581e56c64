import pytest
import torch
from kernel_cases import DEVICE, DTYPES

from splitfuse.kernels.cuda import copy_blocks

pytestmark = pytest.mark.sampled(12)


def _caches(num_caches: int, *shape: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator).to(dtype).to(DEVICE) for _ in range(num_caches)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_kv_heads", "block_size", "head_dim"), [(1, 16, 64), (2, 16, 80), (8, 32, 128), (3, 16, 96)]
)
def test_copy_blocks(num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype) -> None:
    caches = _caches(5, 9, num_kv_heads, block_size, head_dim, dtype=dtype)
    before = [cache.clone() for cache in caches]
    source, target = torch.tensor([0, 3, 3], device=DEVICE), torch.tensor([8, 1, 5], device=DEVICE)
    copy_blocks.copy_blocks(caches, source, target)
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(cache, old[[0, 3, 2, 3, 4, 3, 6, 7, 0]])


def test_k_and_v_of_one_tensor() -> None:
    both = _caches(1, 6, 2, 2, 16, 64, dtype=torch.float16)[0]  # [N, 2, Hkv, S, D]: blocks of K and V side by side
    before = both.clone()
    copy_blocks.copy_blocks(
        [both[:, 0], both[:, 1]], torch.tensor([2], device=DEVICE), torch.tensor([4], device=DEVICE)
    )
    assert torch.equal(both, before[[0, 1, 2, 3, 2, 5]])


def test_nan_is_copied_bit_by_bit() -> None:
    cache = torch.full((3, 1, 16, 64), float("nan"), dtype=torch.float16, device=DEVICE)
    cache[1] = 2.0
    copy_blocks.copy_blocks([cache], torch.tensor([0], device=DEVICE), torch.tensor([1], device=DEVICE))
    assert cache.isnan().all()
