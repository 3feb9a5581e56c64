"""What gpu_bench.py times: medians of `triton.testing.do_bench`, which empties L2 between runs; inputs rotate besides.

Every kernel is compared with torch before it is timed. Under the interpreter all shapes are tiny and run once.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import DEVICE, INTERPRETED
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from triton.testing import do_bench

from splitfuse.kernels import cuda, ops, reference, triton_decode, triton_experts, triton_prefill

DTYPE = torch.float16 if INTERPRETED else torch.bfloat16
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = (4, 2, 64, 16) if INTERPRETED else (32, 8, 128, 16)  # Llama-3.1-8B
HIDDEN, MLP = (256, 512) if INTERPRETED else (4096, 14336)
SCALE = HEAD_DIM**-0.5
NUM_COPIES = 1 if INTERPRETED else 3  # of the inputs, used in turn


@dataclass(frozen=True)
class Result:
    name: str
    microseconds: float
    gigabytes_per_second: float = 0.0
    teraflops: float = 0.0
    share: str = ""  # of the copy or the matmul, whichever bounds it
    rival: str = ""
    times_rival: float = 0.0  # the rival's time over ours: above 1 is faster
    error: float | None = None  # largest difference from torch

    def __str__(self) -> str:
        rate = f"{self.teraflops:7.1f} TFLOP/s" if self.teraflops else f"{self.gigabytes_per_second:7.0f} GB/s   "
        error = "" if self.error is None else f"error {self.error:.4f}"
        rival = f"{self.times_rival:5.2f}x {self.rival}" if self.rival else ""
        return f"{self.name:38} {self.microseconds:10.1f} us {rate} {self.share:14} {error:13} {rival}"


def median_us(run: Callable[[], object]) -> float:
    if INTERPRETED:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e6
    return float(do_bench(run, warmup=25, rep=100, return_mode="median")) * 1e3


def difference(got: Tensor, expected: Tensor) -> float:
    return float((got.float() - expected.float()).abs().max())


class Bench:
    """The two limits, and the results so far."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        size, side = (2**12, 64) if INTERPRETED else (2**30, 8192)
        x, y = (torch.zeros(size, dtype=torch.uint8, device=DEVICE) for _ in range(2))
        microseconds = median_us(lambda: y.copy_(x))
        self.copy_gigabytes = 2 * size / microseconds / 1e3
        self._add(Result(f"limit: copy of {size} bytes", microseconds, self.copy_gigabytes))
        a, b = (torch.randn(side, side, device=DEVICE, dtype=DTYPE) for _ in range(2))
        microseconds = median_us(lambda: a @ b)
        self.matmul_teraflops = 2 * side**3 / microseconds / 1e6
        self._add(Result(f"limit: matmul of {side}^3", microseconds, teraflops=self.matmul_teraflops))

    def _add(self, result: Result) -> None:
        self.results.append(result)
        print(result, flush=True)

    def time(
        self,
        name: str,
        *runs: Callable[[], Any],
        num_bytes: float = 0.0,
        num_operations: float = 0.0,
        error: float | None = None,
        rival: tuple[str, Callable[[], Any]] | None = None,
    ) -> None:
        turns = cycle(runs)
        microseconds = median_us(lambda: next(turns)())
        gigabytes, teraflops = num_bytes / microseconds / 1e3, num_operations / microseconds / 1e6
        of_copy, of_matmul = gigabytes / self.copy_gigabytes, teraflops / self.matmul_teraflops
        share = f"{of_matmul:4.0%} of matmul" if num_operations else f"{of_copy:4.0%} of copy"
        result = Result(name, microseconds, gigabytes, teraflops, share, error=error)
        if rival:
            result = replace(result, rival=rival[0], times_rival=median_us(rival[1]) / microseconds)
        self._add(result)


@dataclass(frozen=True)
class Load:
    """Rows that are all alike, their blocks scattered over the cache."""

    num_rows: int
    seq_len: int
    query_len: int = 1

    def __str__(self) -> str:
        if self.query_len == 1:
            return f"decode {self.num_rows} x {self.seq_len}"
        return f"prefill {self.query_len} after {self.seq_len - self.query_len}"

    @property
    def work(self) -> dict[str, Any]:
        """The bytes that bound a decode, or the operations that bound a prefill."""
        if self.query_len == 1:
            return {"num_bytes": 2 * self.num_rows * self.seq_len * NUM_KV_HEADS * HEAD_DIM * DTYPE.itemsize}
        pairs = self.num_rows * self.query_len * (self.seq_len - self.query_len / 2)
        return {"num_operations": 4 * NUM_HEADS * HEAD_DIM * pairs}

    def build(self) -> tuple[Tensor, Tensor, Tensor, ops.RaggedBatch]:
        blocks_per_row = -(-self.seq_len // BLOCK_SIZE)
        shape = (self.num_rows * blocks_per_row, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        k_cache, v_cache = (torch.randn(shape, device=DEVICE, dtype=DTYPE) for _ in range(2))
        q = torch.randn(self.num_rows * self.query_len, NUM_HEADS, HEAD_DIM, device=DEVICE, dtype=DTYPE)
        ragged = ops.RaggedBatch(
            query_start_loc=torch.arange(0, len(q) + 1, self.query_len, dtype=torch.int32, device=DEVICE),
            seq_lens=torch.full((self.num_rows,), self.seq_len, dtype=torch.int32, device=DEVICE),
            block_tables=torch.randperm(shape[0], device=DEVICE).to(torch.int32).view(self.num_rows, blocks_per_row),
            num_decodes=self.num_rows if self.query_len == 1 else 0,
            max_query_len=self.query_len,
            max_seq_len=self.seq_len,
        )
        return q, k_cache, v_cache, ragged

    def sdpa(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, ragged: ops.RaggedBatch) -> Callable[[], Tensor]:
        """torch's attention over the same keys and values without pages → [rows, Hq, query_len, D]."""
        queries = q.view(self.num_rows, self.query_len, NUM_HEADS, HEAD_DIM).transpose(1, 2)
        pages = (cache[ragged.block_tables.long()].transpose(1, 2) for cache in (k_cache, v_cache))
        keys, values = (x.flatten(2, 3)[:, :, : self.seq_len].contiguous() for x in pages)
        if self.query_len == 1:
            return partial(F.scaled_dot_product_attention, queries, keys, values, enable_gqa=True)
        # Flash attention under the lower-right mask wants as many KV heads as query heads.
        keys, values = (x.repeat_interleave(NUM_HEADS // NUM_KV_HEADS, dim=1) for x in (keys, values))
        mask: Any = causal_lower_right(self.query_len, self.seq_len)
        return partial(F.scaled_dot_product_attention, queries, keys, values, mask)


def time_attention(bench: Bench, load: Load) -> None:
    batches = [load.build() for _ in range(NUM_COPIES)]
    runs = [partial(cuda.paged_attention, *batch, scale=SCALE) for batch in batches]
    sdpa = load.sdpa(*batches[0])
    error = difference(runs[0](), sdpa().transpose(1, 2).flatten(0, 1))
    bench.time(str(load), *runs, **load.work, error=error, rival=("SDPA without pages", sdpa))


def sweep_splits(bench: Bench, load: Load, choices: Iterable[int]) -> None:
    batch = load.build()
    run = partial(triton_decode.decode_attention, *batch, torch.empty_like(batch[0]), scale=SCALE)
    for num_splits in choices:
        bench.time(f"{load}, {num_splits} splits", partial(run, num_splits=num_splits), **load.work)


def sweep_decode(bench: Bench, load: Load) -> None:
    batch = load.build()
    run = partial(triton_decode.decode_attention, *batch, torch.empty_like(batch[0]), scale=SCALE)
    choices = [(16, 32, 4, 3), (16, 32, 4, 4), (16, 32, 4, 5), (16, 32, 2, 4), (16, 64, 4, 3), (16, 64, 4, 4)]
    choices += [(16, 128, 4, 3), (16, 128, 8, 2), (16, 16, 4, 4)]
    for choice in choices[:1] if INTERPRETED else choices:
        bench.time(f"{load} {choice}", partial(run, config=triton_decode.Config(*choice)), **load.work)


def sweep_prefill(bench: Bench, load: Load) -> None:
    batch = load.build()
    run = partial(triton_prefill.prefill_attention, *batch, torch.empty_like(batch[0]), scale=SCALE)
    choices = [(64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (128, 32, 8, 3), (128, 64, 8, 2), (128, 64, 8, 3)]
    choices += [(128, 128, 8, 1), (128, 128, 8, 2), (64, 16, 4, 4)]
    for choice in choices[:1] if INTERPRETED else choices:
        bench.time(f"{load} {choice}", partial(run, config=triton_prefill.Config(*choice)), **load.work)


def time_elementwise(bench: Bench, num_tokens: int) -> None:
    def inputs(width: int) -> list[Tensor]:
        return [torch.randn(num_tokens, width, device=DEVICE, dtype=DTYPE) for _ in range(NUM_COPIES)]

    xs, residuals, gate_ups = inputs(HIDDEN), inputs(HIDDEN), inputs(2 * MLP)
    weight = torch.rand(HIDDEN, device=DEVICE, dtype=DTYPE)
    bench.time(
        f"rms_norm {num_tokens} x {HIDDEN}",
        *(partial(cuda.rms_norm, x, weight, eps=1e-6) for x in xs),
        num_bytes=2 * xs[0].nbytes,
        error=difference(cuda.rms_norm(xs[0], weight, eps=1e-6), reference.rms_norm(xs[0], weight, eps=1e-6)),
        rival=("F.rms_norm", partial(F.rms_norm, xs[0], (HIDDEN,), weight, 1e-6)),
    )
    expected = reference.add_rms_norm(xs[0], residuals[0], weight, eps=1e-6)[0]
    bench.time(
        f"add_rms_norm {num_tokens} x {HIDDEN}",
        *(partial(cuda.add_rms_norm, *pair, weight, eps=1e-6) for pair in zip(xs, residuals, strict=True)),
        num_bytes=4 * xs[0].nbytes,
        error=difference(cuda.add_rms_norm(xs[0], residuals[0], weight, eps=1e-6)[0], expected),
    )
    bench.time(
        f"silu_mul {num_tokens} x {MLP}",
        *(partial(cuda.silu_mul, x) for x in gate_ups),
        num_bytes=1.5 * gate_ups[0].nbytes,
        error=difference(cuda.silu_mul(gate_ups[0]), reference.silu_mul(gate_ups[0])),
    )


def time_rope(bench: Bench, num_tokens: int) -> None:
    widths = [NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM]
    qkv = torch.randn(num_tokens, sum(widths), device=DEVICE, dtype=DTYPE)
    q, k, v = (x.unflatten(1, (-1, HEAD_DIM)) for x in qkv.split_with_sizes(widths, 1))
    angles = torch.rand(num_tokens, HEAD_DIM // 2, device=DEVICE)
    tokens = torch.arange(num_tokens, device=DEVICE)
    shape = (-(-num_tokens // BLOCK_SIZE), NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    caches = [torch.zeros(shape, device=DEVICE, dtype=DTYPE) for _ in range(2)]
    inputs = (q, k, v, torch.cat((angles.cos(), angles.sin()), dim=1), tokens, tokens, *caches)
    norm = torch.rand(HEAD_DIM, device=DEVICE, dtype=DTYPE)
    for name, weight in (("rope_and_cache", None), ("norm + rope_and_cache", norm)):
        run = partial(cuda.rope_and_cache, *inputs, q_norm=weight, k_norm=weight)
        error = difference(run(), reference.rope_and_cache(*inputs, q_norm=weight, k_norm=weight))
        bench.time(f"{name} {num_tokens} tokens", run, num_bytes=2 * qkv.nbytes, error=error)


@dataclass(frozen=True)
class Mixture:
    """Router and experts of one layer."""

    hidden: int
    inner: int
    num_experts: int
    top_k: int

    def build(self) -> triton_experts.PackedExperts:
        shapes = (2 * self.inner, self.hidden), (self.hidden, self.inner)
        tensors = (torch.randn(self.num_experts, *shape, device=DEVICE, dtype=DTYPE) for shape in shapes)
        return triton_experts.PackedExperts(*(tensor.mul_(tensor.shape[2] ** -0.5) for tensor in tensors))

    def ours(self, x: Tensor, logits: Tensor, packed: triton_experts.PackedExperts) -> Tensor:
        return cuda.experts(x, *cuda.route(logits, top_k=self.top_k, renormalize=True), packed)

    def torchs(self, x: Tensor, logits: Tensor, packed: triton_experts.PackedExperts) -> Tensor:
        """The same around torch's grouped matmul, without a wait for the card either."""
        weights, ids = logits.float().softmax(dim=-1).topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        chosen, order = ids.flatten().sort()
        ends = torch.searchsorted(chosen, torch.arange(self.num_experts, device=DEVICE), right=True).to(torch.int32)
        gate_up = F.grouped_mm(x[order // self.top_k], packed.gate_up.transpose(1, 2), offs=ends)
        gate, up = gate_up.chunk(2, dim=-1)
        out = F.grouped_mm(F.silu(gate) * up, packed.down.transpose(1, 2), offs=ends)
        restored = torch.empty_like(out).index_copy_(0, order, out).view(*ids.shape, -1)
        return (restored * weights[:, :, None]).sum(dim=1).to(x.dtype)


def time_experts(bench: Bench, mixture: Mixture, token_counts: Iterable[int]) -> None:
    packed = mixture.build()
    for num_tokens in token_counts:
        x = torch.randn(num_tokens, mixture.hidden, device=DEVICE, dtype=DTYPE)
        logits = torch.randn(num_tokens, mixture.num_experts, device=DEVICE, dtype=DTYPE)
        num_hit = len(cuda.route(logits, top_k=mixture.top_k, renormalize=True)[1].unique())
        each = 6 * mixture.hidden * mixture.inner
        num_bytes, num_operations = each * num_hit, each * num_tokens * mixture.top_k
        ours, torchs = (partial(way, x, logits, packed) for way in (mixture.ours, mixture.torchs))
        bench.time(
            f"{mixture.top_k} of {mixture.num_experts} experts, {num_tokens} tokens",
            ours,
            num_bytes=num_bytes,
            num_operations=num_operations if num_operations > 300 * num_bytes else 0,
            error=difference(ours(), torchs()),
            rival=("F.grouped_mm", torchs),
        )


def time_sampling(bench: Bench, num_rows: int, vocabulary: int) -> None:
    batches = [torch.randn(num_rows, vocabulary, device=DEVICE) for _ in range(NUM_COPIES)]
    keys = torch.arange(num_rows, device=DEVICE) * 2**40
    same = cuda.gumbel_argmax(batches[0], keys) == reference.gumbel_argmax(batches[0], keys)
    bench.time(
        f"gumbel_argmax {num_rows} x {vocabulary}",
        *(partial(cuda.gumbel_argmax, logits, keys) for logits in batches),
        num_bytes=batches[0].nbytes,
        error=float((~same).float().mean()),  # share of rows that drew another token
        rival=("softmax + multinomial", lambda: batches[0].softmax(dim=-1).multinomial(1)),
    )


def run(*, sweep: bool) -> list[Result]:
    bench = Bench()
    if INTERPRETED:
        wide, long, chunk = Load(2, 64), Load(1, 600), Load(1, 40, 16)
        others, token_counts = [], [4]
    else:
        wide, long, chunk = Load(32, 4096), Load(1, 16384), Load(1, 8192, 2048)
        others, token_counts = [Load(1, 65536), Load(256, 1024), Load(1, 2048, 2048), Load(1, 4096, 256)], [32, 2048]
    for load in (wide, long, chunk, *others):
        time_attention(bench, load)
    sweep_splits(bench, long, [1, 2] if INTERPRETED else [1, 16, 32, 64])
    for num_tokens in token_counts:
        time_elementwise(bench, num_tokens)
        time_rope(bench, num_tokens)
    time_sampling(bench, *((3, 500) if INTERPRETED else (32, 128_256)))
    if INTERPRETED:
        time_experts(bench, Mixture(64, 48, 5, 2), [3])
    else:
        for mixture in (Mixture(4096, 14336, 8, 2), Mixture(2048, 768, 128, 8)):  # Mixtral-8x7B, Qwen3-30B-A3B
            time_experts(bench, mixture, [1, 32, 256, 4096])
    if sweep:
        sweep_splits(bench, wide, [1] if INTERPRETED else [1, 2, 4, 8])
        sweep_decode(bench, wide)
        sweep_prefill(bench, chunk)
    return bench.results
