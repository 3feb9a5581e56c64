# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Copies of whole cache blocks, one launch for all caches of one shape: cache[target[i]] = cache[source[i]].

A block [Hkv, S, D] is contiguous, so it is copied as 4-byte words whatever the dtype: every byte is read and written
once. The kernel finds the caches through a table of their addresses, which stays on the GPU.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

# 4096 words over 4 warps are 32 a thread: eight 16-byte loads in flight. Untuned.
CHUNK = 4096
NUM_WARPS = 4


@triton.jit(do_not_specialize_on_alignment=["source_ptr", "target_ptr"])
def _copy_blocks(addresses_ptr, source_ptr, target_ptr, words_per_block, block_stride, CHUNK: tl.constexpr):
    copy = tl.program_id(0)
    # Caches begin at multiples of 16 bytes (the launcher checks): without the hint words would be copied one by one.
    address = tl.load(addresses_ptr + tl.program_id(1))
    cache_ptr = tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16)
    words = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    inside = words < words_per_block
    source, target = tl.load(source_ptr + copy), tl.load(target_ptr + copy)
    block = tl.load(cache_ptr + source * block_stride + words, mask=inside)
    tl.store(cache_ptr + target * block_stride + words, block, mask=inside)


@lru_cache(maxsize=16)
def _address_table(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    """Copy addresses to the GPU once per set of caches, because that copy waits. Addresses alone cannot go stale."""
    return torch.tensor(addresses, dtype=torch.int64, device=device)


def copy_blocks(caches: list[Tensor], source: Tensor, target: Tensor) -> None:
    """Copy blocks of caches [N, Hkv, S, D] with contiguous blocks; source, target [n] int64 on the GPU."""
    for shape in dict.fromkeys(cache.shape for cache in caches):
        _copy_alike([cache for cache in caches if cache.shape == shape], source, target)


def _copy_alike(caches: list[Tensor], source: Tensor, target: Tensor) -> None:
    first = caches[0]
    assert all(cache.shape == first.shape and cache.stride() == first.stride() for cache in caches)
    assert all(cache.dtype == first.dtype and cache.data_ptr() % 16 == 0 for cache in caches)
    assert first[0].is_contiguous()
    assert source.shape == target.shape
    words_per_block = first[0].numel() * first.element_size() // 4
    block_stride = first.stride(0) * first.element_size() // 4
    assert words_per_block % 4 == 0
    assert block_stride % 4 == 0
    table = _address_table(tuple(cache.data_ptr() for cache in caches), first.device)
    grid = (len(source), len(caches), triton.cdiv(words_per_block, CHUNK))
    _copy_blocks[grid](table, source, target, words_per_block, block_stride, CHUNK=CHUNK, num_warps=NUM_WARPS)
