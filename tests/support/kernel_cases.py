"""Ragged batches over a poisoned paged cache, for the kernel tests and benchmarks."""

import os
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from splitfuse.kernels import ops, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# The interpreter of Triton 3.6 and 3.7.1 multiplies the bit patterns of bfloat16: `tl.dot` is garbage there. It also
# cuts float32 down to bfloat16 where the hardware rounds, which the tolerance covers.
DOT_DTYPES = [torch.float16, torch.float32] if INTERPRETED else [torch.float16, torch.bfloat16, torch.float32]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-5}
# On a GPU exp2 and division are approximate: up to 1.5e-5 in a score that is capped at 50.
SOFTCAP_TOLERANCE = 0.0 if INTERPRETED else 1e-4
# The interpreter takes 11 ms of CPU time for a program of one tile, so its lengths end where a longer row would
# only have more tiles of kinds that are tested already.
LONGEST = 40 if INTERPRETED else 70  # maximum of query tokens in a row
NUM_RANDOM_CASES = 8 if INTERPRETED else 12  # on a GPU, a case costs about a second of compilation
UNMAPPED = 2**30  # a block number far outside any cache: a kernel that follows it crashes


def assert_near(actual: Tensor, expected: Tensor, *, tolerance: float = 0.0) -> None:
    """Compare `actual` with a float64 expectation, within its dtype's precision, or `tolerance` if that is more."""
    assert torch.isfinite(actual).all()
    tolerance = max(tolerance, TOLERANCES[actual.dtype])
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


def random_tensor(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(DEVICE)


def kv_scales(num_kv_heads: int) -> Tensor:
    """Return scales [2, Hkv], no two alike."""
    return torch.linspace(0.25, 2.0, 2 * num_kv_heads, device=DEVICE).view(2, num_kv_heads)


def in_double(cache: ops.CacheView) -> ops.CacheView:
    return ops.CacheView(cache.keys.double(), cache.values.double())


@dataclass(frozen=True)
class AttentionCase:
    """Case of attention: query_lens[b] tokens of row b after context_lens[b] cached ones. One-token rows come first."""

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    group: int = 2
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    sliding_window: int = 0
    softcap: float = 0.0
    lookahead: int = 0
    has_sinks: bool = False
    dtype: torch.dtype = torch.float16
    is_cache_joint: bool = False  # True if K and V are views of one tensor [N, 2, Hkv, S, D]
    is_cache_fp8: bool = False  # True for e4m3, whose NaN then fills unused slots
    seed: int = 0

    @property
    def args(self) -> ops.AttentionArgs:
        sinks = torch.linspace(-2.0, 3.0, self.group * self.num_kv_heads, device=DEVICE) if self.has_sinks else None
        return ops.AttentionArgs(self.head_dim**-0.5, self.sliding_window, self.softcap, self.lookahead, sinks)

    @property
    def tolerance(self) -> float:
        """Tolerance for `assert_near`, beyond the dtype's."""
        return SOFTCAP_TOLERANCE if self.softcap else 0.0

    def build(self) -> tuple[Tensor, ops.CacheView, ops.RaggedBatch]:
        """Return (q, cache, ragged).

        NaN fills every slot that no query may see, block tables lead nowhere but to blocks with a visible slot, and q
        is a view of a wider tensor of NaN.
        """
        seq_lens = [query + context for query, context in zip(self.query_lens, self.context_lens, strict=True)]
        blocks_per_row = [-(-seq_len // self.block_size) for seq_len in seq_lens]
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(sum(blocks_per_row) + 3, generator=generator)
        tables = torch.full((len(seq_lens), max(blocks_per_row) + 2), UNMAPPED, dtype=torch.int32)
        k_cache, v_cache = self._poisoned_caches(len(order))
        num_used = 0
        for row, (seq_len, context) in enumerate(zip(seq_lens, self.context_lens, strict=True)):
            oldest = max(0, context + 1 - self.sliding_window) if self.sliding_window else 0
            positions = torch.arange(oldest, seq_len)
            blocks = order[num_used : num_used + blocks_per_row[row]]
            first = oldest // self.block_size
            tables[row, first : len(blocks)] = blocks[first:]
            slots = blocks[positions // self.block_size].to(DEVICE), (positions % self.block_size).to(DEVICE)
            for cache in (k_cache, v_cache):
                values = torch.randn(len(positions), self.num_kv_heads, self.head_dim, generator=generator)
                cache[slots[0], :, slots[1]] = values.to(self.dtype).to(DEVICE)
            num_used += len(blocks)
        starts = torch.tensor([0, *self.query_lens]).cumsum(0).to(torch.int32)
        ragged = ops.RaggedBatch(
            query_start_loc=starts.to(DEVICE),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=DEVICE),
            block_tables=tables.to(DEVICE),
            num_decodes=sum(length == 1 for length in self.query_lens),
            max_query_len=max(self.query_lens),
            max_seq_len=max(seq_lens),
        )
        num_heads = self.num_kv_heads * self.group
        cache = ops.CacheView(k_cache, v_cache)
        if self.is_cache_fp8:
            as_bytes = (values.to(torch.float8_e4m3fn) for values in (k_cache, v_cache))
            cache = ops.CacheView(*as_bytes, kv_scales(self.num_kv_heads))
        wide = torch.full((int(starts[-1]), num_heads + 2, self.head_dim), float("nan"))
        wide[:, 1:-1] = torch.randn(len(wide), num_heads, self.head_dim, generator=generator)
        return wide.to(self.dtype).to(DEVICE)[:, 1:-1], cache, ragged

    def _poisoned_caches(self, num_blocks: int) -> tuple[Tensor, Tensor]:
        shape = (num_blocks, 2, self.num_kv_heads, self.block_size, self.head_dim)
        joint = torch.full(shape, float("nan"), dtype=self.dtype, device=DEVICE)
        if self.is_cache_joint:
            return joint[:, 0], joint[:, 1]
        return joint[:, 0].contiguous(), joint[:, 1].contiguous()

    def expected(self) -> Tensor:
        """Return the expected output of `paged_attention`, in float64."""
        q, cache, ragged = self.build()
        if not self.is_cache_fp8:
            cache = in_double(cache)
        return reference.paged_attention(q.double(), cache, ragged, self.args)


def random_attention_case(seed: int, *, num_decodes: int, num_prefills: int) -> AttentionCase:
    """Return a case of any shape that the kernels claim to support, with up to that many rows of each sort."""
    random = Random(seed)
    pick = random.choice
    num_decodes = random.randint(0, num_decodes) if num_prefills else random.randint(1, num_decodes)
    num_prefills = random.randint(0 if num_decodes else 1, num_prefills) if num_prefills else 0
    query_lens = [1] * num_decodes + [random.randint(2, pick([2, 9, LONGEST])) for _ in range(num_prefills)]
    return AttentionCase(
        tuple(query_lens), tuple(random.randint(0, pick([0, 20, 150])) for _ in query_lens),
        group=pick([1, 2, 3, 4, 6, 7, 8, 16]), num_kv_heads=pick([1, 2, 3]), head_dim=pick([64, 64, 80, 96, 128, 256]),
        block_size=pick([16, 32, 64, 128]), sliding_window=pick([0, 0, 1, 7, 33, 100]), dtype=pick(DOT_DTYPES),
        is_cache_joint=pick([True, False]), softcap=pick([0.0, 0.0, 0.7, 50.0]), has_sinks=pick([False, False, True]),
        seed=seed,
    )  # fmt: skip
