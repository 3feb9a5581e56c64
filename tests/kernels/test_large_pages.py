"""Memory in large pages: tensors do not overlap, and a region goes with its last tensor."""

import gc
import mmap
import time
import weakref

import pytest
import torch

from splitfuse.kernels import large_pages

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="Linux's madvise")


@pytest.fixture(autouse=True)
def regions(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[mmap.mmap]]:
    """Return references to all regions of a test, whose first one is new."""
    made: list[weakref.ref[mmap.mmap]] = []

    def region(num_bytes: int) -> mmap.mmap:
        memory = real(num_bytes)
        made.append(weakref.ref(memory))
        return memory

    real = large_pages.region
    monkeypatch.setattr(large_pages, "region", region)
    monkeypatch.setattr(large_pages, "_last", weakref.ref(real(1)))
    return made


def test_tensors_of_a_region_do_not_overlap(regions: list[weakref.ref[mmap.mmap]]) -> None:
    sizes = [4096, 5001, 2**25, 2**24, 2**24, 4097]
    tensors = [large_pages.empty(size).fill_(number) for number, size in enumerate(sizes)]
    assert len(regions) == 2, "the first ones share a region, the rest does not fit"
    for number, tensor in enumerate(tensors):
        assert (tensor == number).all()
        assert tensor.data_ptr() % 64 == 0


def test_a_large_tensor_has_a_region_of_its_size(regions: list[weakref.ref[mmap.mmap]]) -> None:
    tensor = large_pages.contiguous(torch.ones(2**14, 2**11, dtype=torch.float32).T)
    memory = regions[0]()
    assert memory is not None
    assert len(memory) == 2**27
    assert tensor.is_contiguous()
    assert tensor.sum(dtype=torch.float64) == 2**25


def test_a_region_is_freed_with_its_last_tensor(regions: list[weakref.ref[mmap.mmap]]) -> None:
    first, second = (large_pages.empty(8192) for _ in range(2))
    del first
    assert regions[0]() is not None
    del second
    gc.collect()
    assert regions[0]() is None
    large_pages.empty(8192)
    assert len(regions) == 2


def test_a_later_model_has_regions_of_its_own(
    regions: list[weakref.ref[mmap.mmap]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = large_pages.empty(8192)
    now = time.monotonic() + 10
    monkeypatch.setattr(time, "monotonic", lambda: now)
    second = large_pages.empty(8192)
    assert len(regions) == 2
    del first
    assert regions[0]() is None
    assert second.nbytes == 8192
