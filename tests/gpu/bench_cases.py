"""Cases of bench.py: medians on the GPU, with L2 emptied between runs; inputs rotate, too.

Every kernel is compared with torch before its timing. Under the interpreter all shapes are tiny and run once. Goals
are shares of the GPU's limits, or ratios within one run, so they hold for any GPU.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from kernel_bench import DTYPE, Bench, Goal, difference
from kernel_cases import DEVICE, INTERPRETED
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.utils.rnn import pad_sequence

from splitfuse.kernels import ops, quantize, reference
from splitfuse.kernels.cuda import attention_decode, moe, quantized_linear
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda.linear import few_rows, fp8_linear, int8_linear
from splitfuse.kernels.cuda.linear.quantized_experts import QuantizedExperts

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = (4, 2, 64, 16) if INTERPRETED else (32, 8, 128, 16)  # Llama-3.1-8B
HIDDEN, MLP = (256, 512) if INTERPRETED else (4096, 14336)
SCALE = HEAD_DIM**-0.5
GROUPED_MM: Any = getattr(F, "grouped_mm", getattr(torch, "_grouped_mm", None))  # the name depends on torch's version
NUM_COPIES = 1 if INTERPRETED else 3  # copies of the inputs, used in turn


@dataclass(frozen=True)
class Load:
    """Load of equal rows, with blocks scattered over the cache; with `longest`, the first row of a decode is longer."""

    num_rows: int
    seq_len: int
    query_len: int = 1
    longest: int = 0

    def __str__(self) -> str:
        if self.longest:
            return f"decode {self.num_rows - 1} x {self.seq_len} + {self.longest}"
        if self.query_len == 1:
            return f"decode {self.num_rows} x {self.seq_len}"
        return f"prefill {self.query_len} after {self.seq_len - self.query_len}"

    @property
    def work(self) -> dict[str, Any]:
        """Return the bytes that bound a decode, or the operations that bound a prefill."""
        if self.query_len == 1:
            return {"num_bytes": 2 * sum(self.lengths) * NUM_KV_HEADS * HEAD_DIM * DTYPE.itemsize}
        pairs = self.num_rows * self.query_len * (self.seq_len - self.query_len / 2)
        return {"num_operations": 4 * NUM_HEADS * HEAD_DIM * pairs}

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [self.longest or self.seq_len] + [self.seq_len] * (self.num_rows - 1)

    def build(self) -> tuple[Tensor, ops.CacheView, ops.RaggedBatch, ops.AttentionArgs]:
        num_blocks = [-(-length // BLOCK_SIZE) for length in self.lengths]
        shape = (sum(num_blocks), NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        blocks = torch.randperm(shape[0], device=DEVICE).to(torch.int32).split(num_blocks)
        k_cache, v_cache = (torch.randn(shape, device=DEVICE, dtype=DTYPE) for _ in range(2))
        q = torch.randn(self.num_rows * self.query_len, NUM_HEADS, HEAD_DIM, device=DEVICE, dtype=DTYPE)
        ragged = ops.RaggedBatch(
            query_start_loc=torch.arange(0, len(q) + 1, self.query_len, dtype=torch.int32, device=DEVICE),
            seq_lens=torch.tensor(self.lengths, dtype=torch.int32, device=DEVICE),
            block_tables=pad_sequence(list(blocks), batch_first=True),
            num_decodes=self.num_rows if self.query_len == 1 else 0,
            max_query_len=self.query_len,
            max_seq_len=max(self.lengths),
        )
        return q, ops.CacheView(k_cache, v_cache), planned(ragged), ops.AttentionArgs(SCALE)

    def sdpa(self, q: Tensor, cache: ops.CacheView, ragged: ops.RaggedBatch) -> Callable[[], Tensor]:
        """Return torch's attention over equal keys and values without pages: [rows, Hq, query_len, D]."""
        queries = q.view(self.num_rows, self.query_len, NUM_HEADS, HEAD_DIM).transpose(1, 2)
        pages = (part[ragged.block_tables.long()].transpose(1, 2) for part in cache[:2])
        keys, values = (x.flatten(2, 3)[:, :, : self.seq_len].contiguous() for x in pages)
        if self.query_len == 1:
            return partial(F.scaled_dot_product_attention, queries, keys, values, enable_gqa=True)
        # Flash attention under the lower-right mask wants as many KV heads as query heads.
        keys, values = (x.repeat_interleave(NUM_HEADS // NUM_KV_HEADS, dim=1) for x in (keys, values))
        mask: Any = causal_lower_right(self.query_len, self.seq_len)
        return partial(F.scaled_dot_product_attention, queries, keys, values, mask)


def planned(ragged: ops.RaggedBatch, *, tile: int = 0, min_tokens: int = 0) -> ops.RaggedBatch:
    """Add the work lists that an engine would send, of 16 bits and e4m3; `tile`: of another number of keys a step."""
    device, layers = ragged.seq_lens.device, [(0, NUM_KV_HEADS, HEAD_DIM)]
    plans: dict[str, Tensor] = {}
    for cache_dtype in (DTYPE, torch.float8_e4m3fn):
        planner = attention_decode.decode_planner(device, layers, dtype=DTYPE, cache_dtype=cache_dtype)
        kinds = [kind._replace(tile=tile or kind.tile) for kind in planner.kinds]
        planner = planner._replace(kinds=kinds, min_tokens=min_tokens or planner.min_tokens)
        found = planner(ragged.query_start_loc.cpu().numpy(), ragged.seq_lens.cpu().numpy(), is_fixed=False)
        plans |= {name: torch.from_numpy(plan).to(device) for name, plan in (found or {}).items()}
    return ragged._replace(plans=plans)


def in_e4m3(cache: ops.CacheView) -> ops.CacheView:
    return ops.CacheView(cache.keys.to(torch.float8_e4m3fn), cache.values.to(torch.float8_e4m3fn))


def time_attention(bench: Bench, load: Load, goals: tuple[Goal, ...] = ()) -> None:
    batches = [load.build() for _ in range(NUM_COPIES)]
    runs = [partial(cuda.paged_attention, *batch) for batch in batches]
    sdpa = load.sdpa(*batches[0][:3])
    error = difference(runs[0](), sdpa().transpose(1, 2).flatten(0, 1))
    rival = ("SDPA without pages", sdpa)
    bench.time(str(load), *runs, **load.work, error=error, rival=rival, goal=goals[0] if goals else None)


def time_splitting(bench: Bench, load: Load) -> None:
    """Time a row in many pieces beside the same row in one."""
    batch = load.build()
    out = torch.empty_like(batch[0])
    whole = planned(batch[2], min_tokens=2**30)
    runs = [
        partial(attention_decode.decode_attention, *batch[:2], ragged, batch[3], out) for ragged in (batch[2], whole)
    ]
    bench.time(f"{load}, split", runs[0], **load.work, rival=("one piece", runs[1]), goal=Goal(times_rival=5.0))


def time_long_row(bench: Bench, load: Load) -> None:
    """Time a long row among short ones beside equal rows of the same bytes."""
    equal = Load(load.num_rows, sum(load.lengths) // load.num_rows)
    runs = [partial(cuda.paged_attention, *rows.build()) for rows in (load, equal)]
    bench.time(str(load), runs[0], **load.work, rival=("equal rows", runs[1]), goal=Goal(times_rival=1 / 1.3))


def time_fp8(bench: Bench, load: Load) -> None:
    """Time a cache of e4m3 beside one of 16 bits."""
    q, cache, *rest = load.build()
    as_bytes = in_e4m3(cache)
    run = partial(cuda.paged_attention, q, as_bytes, *rest)
    wide = ops.CacheView(as_bytes.keys.to(DTYPE), as_bytes.values.to(DTYPE))
    widened = partial(cuda.paged_attention, q, wide, *rest)
    work = {key: value / 2 if key == "num_bytes" else value for key, value in load.work.items()}
    goal = Goal(times_rival=1 / 0.58) if load.query_len == 1 else None
    rival = ("16 bits", widened)
    bench.time(f"{load}, e4m3", run, **work, error=difference(run(), widened()), rival=rival, goal=goal)


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
    cos_sin, inputs = torch.cat((angles.cos(), angles.sin()), dim=1), (q, k, v, tokens, tokens)
    norm = torch.rand(HEAD_DIM, device=DEVICE, dtype=DTYPE)
    for name, weight in (("rope_and_cache", None), ("norm + rope_and_cache", norm)):
        args = ops.RopeArgs(cos_sin, q_norm=weight, k_norm=weight), ops.CacheView(*caches)
        run = partial(cuda.rope_and_cache, *inputs, *args)
        error = difference(run(), reference.rope_and_cache(*inputs, *args))
        bench.time(f"{name} {num_tokens} tokens", run, num_bytes=2 * qkv.nbytes, error=error)


@dataclass(frozen=True)
class Mixture:
    """Mixture of experts of one layer, with its router."""

    hidden: int
    inner: int
    num_experts: int
    top_k: int

    def build(self) -> moe.PackedExperts:
        shapes = (2 * self.inner, self.hidden), (self.hidden, self.inner)
        tensors = (torch.randn(self.num_experts, *shape, device=DEVICE, dtype=DTYPE) for shape in shapes)
        return moe.PackedExperts(*(tensor.mul_(tensor.shape[2] ** -0.5) for tensor in tensors))

    def ours(self, x: Tensor, logits: Tensor, packed: moe.PackedExperts | QuantizedExperts) -> Tensor:
        return cuda.experts(x, *cuda.route(logits, ops.RouteArgs(self.top_k, True)), packed)

    def torchs(self, x: Tensor, logits: Tensor, packed: moe.PackedExperts) -> Tensor:
        """Return the layer's output by torch's grouped matmul, also without a wait for the GPU."""
        weights, ids = logits.float().softmax(dim=-1).topk(self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        chosen, order = ids.flatten().sort()
        ends = torch.searchsorted(chosen, torch.arange(self.num_experts, device=DEVICE), right=True).to(torch.int32)
        gate_up = GROUPED_MM(x[order // self.top_k], packed.gate_up.transpose(1, 2), offs=ends)
        gate, up = gate_up.chunk(2, dim=-1)
        out = GROUPED_MM(F.silu(gate) * up, packed.down.transpose(1, 2), offs=ends)
        restored = torch.empty_like(out).index_copy_(0, order, out).view(*ids.shape, -1)
        return (restored * weights[:, :, None]).sum(dim=1).to(x.dtype)


def time_experts(bench: Bench, mixture: Mixture, token_counts: Iterable[int]) -> None:
    packed = mixture.build()
    for num_tokens in token_counts:
        x = torch.randn(num_tokens, mixture.hidden, device=DEVICE, dtype=DTYPE)
        logits = torch.randn(num_tokens, mixture.num_experts, device=DEVICE, dtype=DTYPE)
        num_hit = len(cuda.route(logits, ops.RouteArgs(mixture.top_k, True))[1].unique())
        each = 6 * mixture.hidden * mixture.inner
        num_bytes, num_operations = each * num_hit, each * num_tokens * mixture.top_k
        ours, torchs = (partial(way, x, logits, packed) for way in (mixture.ours, mixture.torchs))
        bench.time(
            f"{mixture.top_k} of {mixture.num_experts} experts, {num_tokens} tokens",
            ours,
            num_bytes=num_bytes,
            num_operations=num_operations if num_operations > 300 * num_bytes else 0,
            error=difference(ours(), torchs()) if GROUPED_MM else None,
            rival=("grouped_mm", torchs) if GROUPED_MM else None,
        )


def time_sampling(bench: Bench, num_rows: int, vocabulary: int) -> None:
    batches = [torch.randn(num_rows, vocabulary, device=DEVICE) for _ in range(NUM_COPIES)]
    keys = torch.arange(num_rows, device=DEVICE) * 2**40
    same = cuda.gumbel_argmax(batches[0], keys) == reference.gumbel_argmax(batches[0], keys)
    bench.time(
        f"gumbel_argmax {num_rows} x {vocabulary}",
        *(partial(cuda.gumbel_argmax, logits, keys) for logits in batches),
        num_bytes=batches[0].nbytes,
        error=float((~same).float().mean()),  # share of rows that sampled another token
        rival=("softmax + multinomial", lambda: batches[0].softmax(dim=-1).multinomial(1)),
    )
    bench.time(
        f"max_logits {num_rows} x {vocabulary}",
        *(partial(cuda.max_logits, logits) for logits in batches),
        num_bytes=batches[0].nbytes,
        error=float((cuda.max_logits(batches[0])[1] != batches[0].argmax(dim=1)).float().mean()),
        rival=("torch", partial(reference.max_logits, batches[0])),
    )


def time_filter(bench: Bench, num_rows: int, vocabulary: int) -> None:
    """Time top_k 50 with top_p 0.9 in all rows. Filters work in place, so both times contain a copy."""
    logits = torch.randn(num_rows, vocabulary, device=DEVICE) * 3
    shares = [torch.full((num_rows,), value, device=DEVICE) for value in (0.9, 0.0)]
    top_k = torch.full((num_rows,), 50, dtype=torch.int32, device=DEVICE)

    def ours() -> Tensor:
        return cuda.filter_logits(logits.clone(), top_k, *shares)

    def sorting() -> Tensor:
        values, ids = logits.sort(dim=-1, descending=True)
        weights = values[:, :50].softmax(dim=-1)
        inside = weights.cumsum(-1) - weights < 0.9
        return torch.full_like(logits, -torch.inf).scatter_(1, ids[:, :50], values[:, :50].where(inside, -torch.inf))

    same = ours().isinf() == sorting().isinf()
    name, error = f"filter_logits {num_rows} x {vocabulary}", float((~same).float().mean())
    bench.time(name, ours, num_bytes=3 * logits.nbytes, error=error, rival=("sort", sorting), goal=Goal(times_rival=1))


@dataclass(frozen=True)
class QuantizedMatmul:
    """Product of x [rows, K] with a weight [N, K] of 8 or 4 bits."""

    num_rows: int
    num_outputs: int
    num_inputs: int
    bits: int

    def __str__(self) -> str:
        return f"int{self.bits} {self.num_rows} x {self.num_inputs} -> {self.num_outputs}"

    def build(self) -> tuple[list[Tensor], quantized_linear.QuantizedLinear]:
        weight = torch.randn(self.num_outputs, self.num_inputs, device=DEVICE, dtype=DTYPE) * self.num_inputs**-0.5
        xs = [torch.randn(self.num_rows, self.num_inputs, device=DEVICE, dtype=DTYPE) for _ in range(NUM_COPIES)]
        return xs, quantized_linear.pack(quantize.quantize(weight, self.bits), None)

    @property
    def num_bytes(self) -> float:
        return self.num_outputs * self.num_inputs * self.bits / 8


def time_quantized(bench: Bench, product: QuantizedMatmul) -> None:
    xs, packed = product.build()
    wide = quantized_linear.widen(packed, DTYPE)
    runs = [partial(quantized_linear.multiply, x, packed) for x in xs]
    num_operations = 2 * product.num_rows * product.num_outputs * product.num_inputs
    bench.time(
        str(product),
        *runs,
        num_bytes=product.num_bytes,
        num_operations=num_operations if product.num_rows > 64 else 0,
        error=difference(runs[0](), F.linear(xs[0], wide)),
        rival=("16 bits, cuBLAS", partial(F.linear, xs[0], wide)),
        goal=Goal(times_rival=1.0) if product.num_rows <= 64 else None,
    )


def time_few_rows(bench: Bench, num_rows: int, num_outputs: int, num_inputs: int, *, is_gated: bool = False) -> None:
    """Time few rows beside cuBLAS (with a gate, and silu_mul); weights take turns, so that none stays in L2."""
    weights = [
        torch.randn(num_outputs, num_inputs, device=DEVICE, dtype=DTYPE) * num_inputs**-0.5 for _ in range(NUM_COPIES)
    ]
    x = torch.randn(num_rows, num_inputs, device=DEVICE, dtype=DTYPE)
    plain = [partial(F.linear, x, weight) for weight in weights]
    rivals = [lambda product=product: cuda.silu_mul(product()) for product in plain] if is_gated else plain  # type: ignore[misc]
    in_turn = cycle(rivals)
    name = f"{num_rows} x {num_inputs} -> {num_outputs}{' gated' * is_gated}"
    options: dict[str, Any] = {"goal": Goal(times_rival=1.0), "rival": ("cuBLAS", lambda: next(in_turn)())}
    runs = [
        partial(few_rows.multiply, x, few_rows.Weight(weight, None, None), dtype=DTYPE, is_gated=is_gated)
        for weight in weights
    ]
    bench.time(name, *runs, num_bytes=weights[0].nbytes, error=difference(runs[0](), rivals[0]()), **options)
    packed = [fp8_linear.pack(weight, None) for weight in weights]
    runs = [partial(fp8_linear.multiply, x, weight, is_gated=is_gated) for weight in packed]
    bench.time(f"{name}, e4m3", *runs, num_bytes=weights[0].nbytes / 2, **options)


def time_fp8_linear(bench: Bench, num_rows: int) -> None:
    """Time Llama-3.1-8B's gate and up in e4m3 beside 16 bits."""
    weight = torch.randn(2 * MLP, HIDDEN, device=DEVICE, dtype=DTYPE) * HIDDEN**-0.5
    x, packed = torch.randn(num_rows, HIDDEN, device=DEVICE, dtype=DTYPE), fp8_linear.pack(weight, None)
    (rounded, scales), run = fp8_linear.round_rows(x), partial(fp8_linear.multiply, x, packed)
    expected = (rounded.float() * scales[:, None]) @ (packed.values.float() * packed.scales[:, None]).T
    bench.time(
        f"e4m3 {num_rows} x {HIDDEN} -> {2 * MLP}",
        run,
        num_bytes=packed.values.nbytes,
        error=difference(run(), expected),
        rival=("16 bits, cuBLAS", partial(F.linear, x, weight)),
    )


def time_int8_linear(bench: Bench, num_rows: int, num_outputs: int, num_inputs: int) -> None:
    """Time W8A8 beside 16 bits; and its integers alone beside cuBLAS's, which takes no fewer than 17 rows."""
    weight = torch.randn(num_outputs, num_inputs, device=DEVICE, dtype=DTYPE) * num_inputs**-0.5
    x = torch.randn(num_rows, num_inputs, device=DEVICE, dtype=DTYPE)
    packed = int8_linear.pack(quantize.quantize(weight, 8), None)
    (rounded, scales), run = fp8_linear.round_rows(x, dtype=torch.int8), partial(int8_linear.multiply, x, packed)
    expected = (rounded.float() * scales[:, None]) @ (packed.values.float() * packed.scales[:, None]).T
    work = {"num_bytes": packed.values.nbytes, "error": difference(run(), expected)}
    name = f"W8A8 {num_rows} x {num_inputs} -> {num_outputs}"
    goal = Goal(times_rival=1.3)
    bench.time(name, run, **work, rival=("16 bits, cuBLAS", partial(F.linear, x, weight)), goal=goal)
    if num_rows > 16:
        integers = partial(torch._int_mm, rounded, packed.values.T)
        bench.time(f"{name}, integers", run, **work, rival=("cuBLAS, no scales", integers))


def in_fp8_blocks(weight: Tensor) -> quantize.QuantizedWeight:
    """Round a weight [N, K] to e4m3 in blocks of 128 x 128, or smaller ones."""
    rows, columns = (min(side, 128) for side in weight.shape)
    blocks = weight.float().view(-(-len(weight) // rows), rows, -1, columns)
    scales = blocks.abs().amax(dim=(1, 3), keepdim=True) / 448
    values = (blocks / scales).view(weight.shape).to(torch.float8_e4m3fn)
    spread = scales[:, 0, :, 0].T.repeat_interleave(rows, dim=1).contiguous()
    return quantize.QuantizedWeight(values, spread, None, 8)


def in_mxfp4(weight: Tensor) -> quantize.QuantizedWeight:
    """Return codes of chance with scales near the weight's size: speed does not depend on values."""
    num_outputs, num_inputs = weight.shape
    codes = torch.randint(0, 16, weight.shape, dtype=torch.uint8, device=DEVICE)
    scales = torch.full((num_inputs // 32, num_outputs), 2.0**-8, device=DEVICE)
    return quantize.QuantizedWeight(codes, scales, None, 4, codebook=quantize.E2M1)


FORMATS: dict[str, tuple[Callable[[Tensor], quantize.QuantizedWeight], float]] = {  # with the bytes of a weight
    "fp8 blocks": (in_fp8_blocks, 1.0),
    "mxfp4": (in_mxfp4, 17 / 32),
    "int4": (partial(quantize.quantize, bits=4), 0.5625),
}


def time_packed_experts(bench: Bench, mixture: Mixture, name: str, token_counts: Iterable[int]) -> None:
    """Time packed experts beside experts of 16 bits with the same values."""
    (rounded, bytes_each), plain = FORMATS[name], mixture.build()
    each = [
        ops.ExpertWeights([rounded(gate_up)], rounded(down))
        for gate_up, down in zip(plain.gate_up, plain.down, strict=True)
    ]
    packed = cuda.pack_experts(each, num_experts=mixture.num_experts, dtype=DTYPE)
    for index, expert in enumerate(each):
        plain.gate_up[index] = quantize.dequantized([*expert.gate_up], DTYPE)  # type: ignore[list-item]
        plain.down[index] = quantize.dequantized([expert.down], DTYPE)  # type: ignore[list-item]
    for num_tokens in token_counts:
        x = torch.randn(num_tokens, mixture.hidden, device=DEVICE, dtype=DTYPE)
        logits = torch.randn(num_tokens, mixture.num_experts, device=DEVICE, dtype=DTYPE)
        num_hit = len(cuda.route(logits, ops.RouteArgs(mixture.top_k, True))[1].unique())
        ours, wide = (partial(mixture.ours, x, logits, weights) for weights in (packed, plain))
        bench.time(
            f"{name} {mixture.top_k} of {mixture.num_experts} experts, {num_tokens} tokens",
            ours,
            num_bytes=3 * mixture.hidden * mixture.inner * bytes_each * num_hit,
            error=difference(ours(), wide()),
            rival=("16 bits", wide),
            goal=Goal(times_rival=1.0) if num_tokens <= 256 else None,
        )


def run(bench: Bench) -> None:
    """Run all cases, those with a goal first."""
    if INTERPRETED:
        _run_tiny(bench)
        return
    of_copy = (Goal(share=0.9, times_rival=1.0),)
    long = Load(1, 16384)
    for load in (Load(32, 4096), Load(1, 65536), Load(256, 1024)):
        time_attention(bench, load, of_copy)
        time_fp8(bench, load)
    for num_rows in (1, 4, 8):
        time_few_rows(bench, num_rows, 2 * MLP, HIDDEN, is_gated=True)
        for num_outputs, num_inputs in ((6144, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, MLP)):
            time_few_rows(bench, num_rows, num_outputs, num_inputs)
    for num_rows in (32, 256, 2048):
        time_fp8_linear(bench, num_rows)
    time_splitting(bench, long)
    time_attention(bench, Load(1, 8192, 2048), (Goal(share=0.45),))  # torch's SDPA is not Hopper's best attention
    for load in (Load(1, 1024), long, Load(1, 2048, 2048), Load(1, 4096, 256)):
        time_attention(bench, load)
    time_fp8(bench, Load(1, 8192, 2048))
    time_long_row(bench, Load(64, 1024, longest=131_072))
    for bits in (8, 4):
        for num_rows in (1, 16, 64, 256, 512, 2048):
            time_quantized(bench, QuantizedMatmul(num_rows, 28672, 4096, bits))
    for num_rows in (1, 32, 256):
        time_filter(bench, num_rows, 128_256)
    for num_rows in (1, 32):
        time_sampling(bench, num_rows, 128_256)
    for num_tokens in (1, 32, 2048):
        time_elementwise(bench, num_tokens)
        time_rope(bench, num_tokens)
    for mixture in (Mixture(4096, 14336, 8, 2), Mixture(2048, 768, 128, 8)):  # Mixtral-8x7B, Qwen3-30B-A3B
        time_experts(bench, mixture, [1, 32, 256, 4096])
    for num_rows in (1, 16, 64, 256, 2048):
        time_int8_linear(bench, num_rows, 28672, 4096)
    time_int8_linear(bench, 1, 4096, 14336)
    for name in ("fp8 blocks", "int4"):
        time_packed_experts(bench, Mixture(2048, 768, 128, 8), name, [1, 32, 256, 4096])
    time_packed_experts(bench, Mixture(2880, 2880, 32, 4), "mxfp4", [1, 32, 256, 4096])  # gpt-oss-20b


def _run_tiny(bench: Bench) -> None:
    for load in (Load(2, 64), Load(1, 40, 16)):
        time_attention(bench, load, (Goal(share=1e9),))
        time_fp8(bench, load)
    time_few_rows(bench, 2, 96, 64)
    time_few_rows(bench, 2, 96, 64, is_gated=True)
    time_fp8_linear(bench, 20)
    time_splitting(bench, Load(1, 600))
    time_long_row(bench, Load(3, 16, longest=112))
    for bits in (8, 4):
        time_quantized(bench, QuantizedMatmul(3, 96, 256, bits))
    time_filter(bench, 3, 500)
    time_sampling(bench, 3, 500)
    time_elementwise(bench, 4)
    time_rope(bench, 4)
    time_experts(bench, Mixture(64, 48, 5, 2), [3])
    for num_rows in (2, 20):
        time_int8_linear(bench, num_rows, 96, 256)
    for name in FORMATS:
        time_packed_experts(bench, Mixture(128, 64, 3, 2), name, [3])
