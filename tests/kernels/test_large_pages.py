"""Memory in large pages goes with its tensor; small tensors have none."""

import gc
import mmap
import weakref

import pytest
import torch

from splitfuse.kernels import large_pages

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux's madvise")


@pytest.fixture(autouse=True)
def regions(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[mmap.mmap]]:
    """Return references to all regions of a test."""
    made: list[weakref.ref[mmap.mmap]] = []

    def region(num_bytes: int) -> mmap.mmap:
        memory = real(num_bytes)
        made.append(weakref.ref(memory))
        return memory

    real = large_pages.region
    monkeypatch.setattr(large_pages, "region", region)
    return made


def test_a_tensor_of_a_page_has_a_region_of_its_size(regions: list[weakref.ref[mmap.mmap]]) -> None:
    small, large = (large_pages.empty(large_pages.LARGE_PAGE + more) for more in (-1, 5))
    assert (len(small), len(large)) == (large_pages.LARGE_PAGE - 1, large_pages.LARGE_PAGE + 5)
    memory = regions[0]()
    assert memory is not None
    assert (len(regions), len(memory)) == (1, len(large))


def test_a_region_is_freed_with_its_tensor(regions: list[weakref.ref[mmap.mmap]]) -> None:
    tensor = large_pages.contiguous(torch.ones(2**10, 2**11, dtype=torch.float32).T)
    part = tensor[3:]
    del tensor
    assert part.sum(dtype=torch.float64) == part.numel()
    assert regions[0]() is not None
    del part
    gc.collect()
    assert regions[0]() is None
