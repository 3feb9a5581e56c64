import random
from dataclasses import dataclass

import pytest
import torch
from kernel_cases import DEVICE, DTYPES, assert_near, kv_scales, random_tensor
from torch import Tensor

from splitfuse.kernels import reference
from splitfuse.kernels.arguments import CacheView, RopeArgs
from splitfuse.kernels.cuda import rope_and_cache

pytestmark = pytest.mark.sampled(12)


@dataclass(frozen=True)
class RopeCase:
    num_tokens: int = 5
    group: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int | None = None  # None: the whole head
    block_size: int = 16
    has_norms: bool = False
    has_wide_norms: bool = False  # True: weights in float32
    dtype: torch.dtype = torch.float16
    seed: int = 0

    def check(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        num_kv_heads, head_dim = self.num_kv_heads, self.head_dim
        widths = [num_kv_heads * self.group * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim]
        qkv = torch.randn(self.num_tokens, sum(widths), generator=generator).to(self.dtype).to(DEVICE)
        q, k, v = (x.unflatten(1, (-1, head_dim)) for x in qkv.split_with_sizes(widths, 1))
        rotary_dim = head_dim if self.rotary_dim is None else self.rotary_dim
        angles = torch.rand(50, rotary_dim // 2, generator=generator) * 6
        cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1).to(DEVICE)
        positions = torch.randint(0, 50, (self.num_tokens,), generator=generator).to(DEVICE)
        slots = torch.randperm(3 * self.block_size, generator=generator)[: self.num_tokens]
        slots[torch.rand(self.num_tokens, generator=generator) < 0.2] = -1
        slots = slots.to(DEVICE)
        caches = [torch.full((3, num_kv_heads, self.block_size, head_dim), float("nan"), device=DEVICE) for _ in "kv"]
        norms = None
        if self.has_norms:
            norm_dtype = torch.float32 if self.has_wide_norms else self.dtype
            norms = torch.rand(2, head_dim, generator=generator).to(norm_dtype).to(DEVICE)
        self._compare((q, k, v, cos_sin, positions, slots), caches, norms)

    def _compare(self, inputs: tuple[Tensor, ...], caches: list[Tensor], norms: Tensor | None) -> None:
        q, k, v, cos_sin, positions, slots = inputs
        q_norm, k_norm = (None, None) if norms is None else norms
        k_cache, v_cache = (cache.to(self.dtype) for cache in caches)
        wide_k_cache, wide_v_cache = (cache.double() for cache in caches)
        wide_q_norm, wide_k_norm = (None, None) if norms is None else norms.double()
        wide_rope, wide_cache = RopeArgs(cos_sin, wide_q_norm, wide_k_norm), CacheView(wide_k_cache, wide_v_cache)
        wide = q.double(), k.double(), v.double()
        expected = reference.rope_and_cache(*wide, positions, slots, wide_rope, wide_cache)
        rope, cache_view = RopeArgs(cos_sin, q_norm, k_norm), CacheView(k_cache, v_cache)
        got = rope_and_cache.rope_and_cache(q, k, v, positions, slots, rope, cache_view)
        assert_near(got, expected)
        for cache, wide in ((k_cache, wide_k_cache), (v_cache, wide_v_cache)):
            written = ~wide.isnan()
            assert torch.equal(cache.isnan(), ~written)
            assert_near(cache[written], wide[written])


@pytest.mark.parametrize(
    "case",
    [
        RopeCase(),
        RopeCase(dtype=torch.bfloat16, has_norms=True),
        RopeCase(dtype=torch.float32, head_dim=128, group=1),
        RopeCase(head_dim=80, group=3, has_norms=True),
        RopeCase(head_dim=96, group=7, num_kv_heads=1),
        RopeCase(head_dim=256, group=2, block_size=64, has_norms=True),
        RopeCase(head_dim=80, rotary_dim=32),
        RopeCase(rotary_dim=0),
        RopeCase(head_dim=80, rotary_dim=0, group=1, dtype=torch.float32),
        RopeCase(has_norms=True, has_wide_norms=True, dtype=torch.bfloat16),
        RopeCase(group=71, num_kv_heads=1),
        RopeCase(head_dim=128, rotary_dim=64, has_norms=True, dtype=torch.bfloat16),
        RopeCase(head_dim=96, rotary_dim=48, group=6, has_norms=True),
        RopeCase(group=16, num_kv_heads=1, block_size=32),
        RopeCase(num_tokens=0),
        RopeCase(num_tokens=37, block_size=128),
    ],
    ids=str,
)
def test_rope_and_cache(case: RopeCase) -> None:
    case.check()


@pytest.mark.parametrize("seed", range(15))
def test_random_shapes(seed: int) -> None:
    pick = random.Random(seed).choice
    head_dim = pick([64, 80, 96, 128])
    RopeCase(
        num_tokens=pick([1, 2, 11, 30]), group=pick([1, 2, 3, 4, 5, 6, 7, 8]), num_kv_heads=pick([1, 2, 3]),
        head_dim=head_dim, rotary_dim=pick([None, 0, head_dim // 2, head_dim - 16]), block_size=pick([16, 32, 64]),
        has_norms=pick([True, False]), dtype=pick(DTYPES), seed=seed,
    ).check()  # fmt: skip


def test_only_q_norm() -> None:
    q = torch.randn(2, 4, 64, device=DEVICE)
    cos_sin = torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), dim=1).to(DEVICE)
    cache, indices = torch.zeros(1, 4, 16, 64, device=DEVICE), torch.zeros(2, dtype=torch.int64, device=DEVICE)
    weight = torch.full((64,), 2.0, device=DEVICE)
    rope, view = RopeArgs(cos_sin, q_norm=weight), CacheView(cache, cache.clone())
    got = rope_and_cache.rope_and_cache(q, q, q, indices, indices + 3, rope, view)
    assert_near(got, reference.rms_norm(q.double(), weight.double(), eps=1e-6))


@pytest.mark.parametrize("scaled", [False, True])
def test_every_float_finds_its_byte(scaled: bool) -> None:
    """Values around and between all bytes of e4m3, ties, and too large values, through keys and values."""
    bytes_ = torch.arange(256, dtype=torch.uint8)
    exact = bytes_.view(torch.float8_e4m3fn).float()
    exact = exact[exact.isfinite()].sort().values
    middles = (exact[1:] + exact[:-1]) / 2
    around = [x * factor for x in (exact, middles) for factor in (1.0, 1.0 + 2.0**-20, 1.0 - 2.0**-20)]
    values = torch.cat([*around, torch.tensor([1e9, -1e9, 460.0, 1e-30])])
    values = torch.cat((values, torch.zeros(-len(values) % 128))).view(-1, 2, 64).to(DEVICE)
    num_tokens = len(values)
    cos_sin = torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), dim=1).to(DEVICE)
    shape = (-(-num_tokens // 16), 2, 16, 64)
    got, expected = (
        [torch.full(shape, 0x7F, dtype=torch.uint8, device=DEVICE).view(torch.float8_e4m3fn) for _ in "kv"]
        for _ in range(2)
    )
    inputs = (values, values, values, torch.zeros(num_tokens, dtype=torch.int64, device=DEVICE))
    slots = torch.arange(num_tokens, device=DEVICE)
    # Powers of 2, so that no rounding comes before the one that is tested.
    scales = torch.tensor([[0.5, 2.0], [4.0, 1.0]], device=DEVICE) if scaled else None
    rope_and_cache.rope_and_cache(*inputs, slots, RopeArgs(cos_sin), CacheView(*got, scales))
    reference.rope_and_cache(*inputs, slots, RopeArgs(cos_sin), CacheView(*expected, scales))
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.view(torch.uint8).tolist() == theirs.view(torch.uint8).tolist()


@pytest.mark.parametrize("has_norms", [False, True])
def test_caches_of_e4m3(has_norms: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(9, heads, 80, generator=generator).to(torch.bfloat16).to(DEVICE) for heads in (6, 2, 2))
    angles = torch.rand(50, 32, generator=generator) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1).to(DEVICE)
    indices = torch.arange(9, device=DEVICE)
    norm = torch.rand(80, generator=generator).to(DEVICE) if has_norms else None
    rope = RopeArgs(cos_sin, q_norm=norm, k_norm=norm)
    empty = torch.full((2, 2, 16, 80), 0x7F, dtype=torch.uint8, device=DEVICE)
    got, expected = ([empty.clone().view(torch.float8_e4m3fn) for _ in "kv"] for _ in range(2))
    rotated = rope_and_cache.rope_and_cache(q, k, v, indices, indices, rope, CacheView(*got, kv_scales(2)))
    wide = (x.double() for x in (q, k, v))
    assert_near(rotated, reference.rope_and_cache(*wide, indices, indices, rope, CacheView(*expected, kv_scales(2))))
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.equal(ours.float().isnan(), theirs.float().isnan())
        # A value on the edge between two bytes may be rounded to either.
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=2**-3, atol=2**-9, equal_nan=True)
        assert (ours.float() == theirs.float()).float()[:1].mean() > 0.5


def test_values_are_normalised_too() -> None:
    q, k, v = (random_tensor(5, heads, 64, seed=seed, dtype=torch.float32) for seed, heads in enumerate((4, 2, 2)))
    slots = torch.arange(5, device=DEVICE)
    rope = RopeArgs(torch.rand(5, 64, device=DEVICE), v_norm=torch.rand(64, device=DEVICE))
    caches = [torch.zeros(2, 2, 16, 64, device=DEVICE) for _ in range(4)]
    rope_and_cache.rope_and_cache(q, k, v, slots, slots, rope, CacheView(*caches[:2]))
    reference.rope_and_cache(q, k, v, slots, slots, rope, CacheView(*caches[2:]))
    for got, wanted in zip(caches[:2], caches[2:], strict=True):
        assert_near(got, wanted.double())
