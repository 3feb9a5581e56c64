"""Report on the kernels' machine code, compiled for GPUs that need not be there.

    python tests/gpu/compile_report.py [--arch 90] [--kernel prefill …] [--first] [--json]

The launchers run with CPU tensors. A driver that only names a target stands in for the GPU's, so Triton specialises
and compiles for that GPU, and stops before the launch. Registers and local memory (spills) come from the
`cuobjdump` in Triton's wheel. Needs a process without TRITON_INTERPRET.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import paths  # noqa: F401
import torch
import triton
from instruction_budget import budget
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from splitfuse.kernels import ops
from splitfuse.kernels.cuda import backend as cuda
from splitfuse.kernels.cuda import device_info, moe, quantized_linear
from splitfuse.kernels.cuda.compile_ahead import compile_ahead
from splitfuse.kernels.cuda.device_info import H100, SMALLEST_SHARED_MEMORY, DeviceInfo
from splitfuse.kernels.cuda.linear import few_rows, fp8_linear, int8_linear, quantized_experts

DEVICES = {
    80: DeviceInfo(80, 108, 166_912),  # A100
    89: DeviceInfo(89, 58, SMALLEST_SHARED_MEMORY),  # L4
    90: H100,
    100: DeviceInfo(100, 148, 232_448),  # B200
    120: DeviceInfo(120, 170, SMALLEST_SHARED_MEMORY),  # RTX 5090
    942: DeviceInfo(80, 304, 65_536, is_amd=True),  # MI300X, gfx942: nothing of Hopper
    950: DeviceInfo(80, 256, 163_840, is_amd=True),  # MI355X, gfx950
}
TENSOR_CORE = re.compile(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync")
LOAD = re.compile(r"ld\.global(?:\.v(\d))?\.[bfsu](\d+)")
ASYNC_LOAD = re.compile(r"cp\.async\.c[ag]\.shared\.global [^;]*?, 0x([0-9a-f]+)")
TOUCHES = re.compile(r"\b(ld|st|cp\.async|atom|red)\.[\w.:]*global|\bret;")  # global memory, or the end
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
AMD_RESOURCES = re.compile(r"\.(vgpr_count|private_segment_fixed_size): +(\d+)")


@dataclass(frozen=True)
class Shape:
    kind: str  # name of a launch in LAUNCHES
    dtype: str = "bfloat16"
    head_dim: int = 128
    group: int = 4  # query heads of a KV head; for quantized weights: 32 if so many inputs share a scale
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    cache_dtype: str = ""  # empty: like dtype; for quantized weights: their values' dtype, if another than usual
    num_tokens: int = 2048  # query tokens of a prefill, rows of all others
    experts: tuple[int, int, int, int] = (0, 0, 0, 0)  # hidden and MLP size, experts, experts per token

    def __str__(self) -> str:
        if "experts" in self.kind:
            hidden, inner, num_experts, top_k = self.experts
            return f"{self.dtype} {hidden}x{inner} {top_k}of{num_experts} T{self.num_tokens}"
        cache = f" {self.cache_dtype}" if self.cache_dtype else ""
        cache += " mixed" if self.kind == "mixed" else ""
        window = f" window {self.window}" if self.window else ""
        window += f" cap {self.softcap:g}" if self.softcap else ""
        return f"{self.dtype} D{self.head_dim} G{self.group} S{self.block_size} T{self.num_tokens}{cache}{window}"


@dataclass(frozen=True)
class Compiled:
    kernel: str
    shape: str
    arch: int
    num_warps: int
    num_stages: int
    registers: int
    spilled: int  # bytes of stack and local memory per thread
    shared: int  # bytes per program
    tensor_core: str  # the tensor core instruction in the PTX, or ""
    widest_load: int = 0  # bytes of a thread's widest load from global memory
    waits: str = ""  # wait for the previous kernel, if launched before its end: "first" of all instructions, or "late"
    # Percent of what memory speed leaves (instruction_budget.py); 0 if memory is not the bound
    issue: float = 0.0
    conversions: float = 0.0
    spills_in_loop: int = 0  # instructions


class OfflineDriver:
    """Driver of Triton with just the parts that compilation needs; it loads nothing."""

    def __init__(self, arch: int) -> None:
        self.arch = arch
        self.utils = self

    def launcher_cls(self, source: object, metadata: object) -> object:
        return object()

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": DEVICES[self.arch].shared_memory}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[object, object, int, int, int]:
        return object(), object(), 0, 0, 1024

    def get_current_target(self) -> GPUTarget:
        return (
            GPUTarget("hip", f"gfx{self.arch}", 64) if DEVICES[self.arch].is_amd else GPUTarget("cuda", self.arch, 32)
        )

    def get_current_device(self) -> int:
        return self.arch  # Triton caches kernels by device: one device per target

    def get_current_stream(self, device: int) -> int:
        return 0


def _empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _attention(shape: Shape, *, query_len: int, seq_len: int, is_mixed: bool = False) -> None:
    dtype, num_kv_heads, num_blocks = getattr(torch, shape.dtype), 8, 8
    num_rows = shape.num_tokens if query_len == 1 else 1
    num_tokens = num_rows * query_len
    q = _empty(num_tokens, num_kv_heads * shape.group, shape.head_dim, dtype=dtype)
    cache_dtype = getattr(torch, shape.cache_dtype or shape.dtype)
    k_cache = _empty(num_blocks, num_kv_heads, shape.block_size, shape.head_dim, dtype=cache_dtype)
    ragged = ops.RaggedBatch(
        query_len * torch.arange(num_rows + 1, dtype=torch.int32),  # read by the launcher, like the lengths
        torch.full((num_rows,), query_len, dtype=torch.int32),
        _empty(num_rows, 64, dtype=torch.int32),
        num_decodes=None if is_mixed else num_rows if query_len == 1 else 0,
        max_query_len=query_len,
        max_seq_len=seq_len,
    )
    scales = _empty(2, num_kv_heads, dtype=torch.float32) if shape.cache_dtype else None
    cache = ops.CacheView(k_cache, k_cache.clone(), scales)
    cuda.paged_attention(q, cache, ragged, ops.AttentionArgs(0.1, shape.window, shape.softcap))


def _rope(shape: Shape) -> None:
    dtype, num_kv_heads, num_tokens = getattr(torch, shape.dtype), 8, shape.num_tokens
    q = _empty(num_tokens, num_kv_heads * shape.group, shape.head_dim, dtype=dtype)
    k, norm = _empty(num_tokens, num_kv_heads, shape.head_dim, dtype=dtype), _empty(shape.head_dim, dtype=dtype)
    cache = _empty(8, num_kv_heads, shape.block_size, shape.head_dim, dtype=dtype)
    angles, tokens = _empty(64, shape.head_dim, dtype=torch.float32), _empty(num_tokens, dtype=torch.int64)
    bytes_, scales = _empty(*cache.shape, dtype=torch.float8_e4m3fn), _empty(2, num_kv_heads, dtype=torch.float32)
    view, fp8 = ops.CacheView(cache, cache.clone()), ops.CacheView(bytes_, bytes_.clone(), scales)
    half = angles[:, : shape.head_dim // 2].contiguous()
    for rope, into in (
        (ops.RopeArgs(angles, norm, norm), view),
        (ops.RopeArgs(angles), fp8),
        (ops.RopeArgs(half), view),
        (ops.RopeArgs(angles[:, :0]), view),
        (ops.RopeArgs(angles, norm.float(), norm.float()), view),
    ):
        cuda.rope_and_cache(q, k, k, tokens, tokens, rope, into)


def _latent(shape: Shape) -> None:
    """Launch latent attention of DeepSeek's heads: one query a row with and without spans, chunks, and the writes."""
    dtype, num_heads, num_tokens = getattr(torch, shape.dtype), shape.group, shape.num_tokens
    lines = _empty(8, 1, shape.block_size, 576, dtype=getattr(torch, shape.cache_dtype or shape.dtype))
    cache, args = ops.CacheView(lines, lines), ops.AttentionArgs(0.1, value_dim=512)
    places, q = _empty(num_tokens + 1, dtype=torch.int32), _empty(num_tokens, num_heads, 576, dtype=dtype)
    ragged = ops.RaggedBatch(places, places[1:], places[None], num_tokens, 1, 8192)
    for batch in (ragged, ragged._replace(num_decodes=0, max_query_len=num_tokens)):
        cuda.paged_attention(q, cache, batch, args)
    inputs, weight = _empty(num_tokens, num_heads, 192, dtype=dtype), _empty(num_heads, 512, 128, dtype=dtype)
    latent, tokens = _empty(num_tokens, 576, dtype=dtype), _empty(num_tokens, dtype=torch.int64)
    angles = _empty(64, 64, dtype=torch.float32)
    cuda.latent_and_cache(inputs, latent[:, :512], latent[:, 512:], tokens, tokens, angles, weight, cache)


def _norms(shape: Shape) -> None:
    x, weight = (_empty(*size, dtype=getattr(torch, shape.dtype)) for size in ((shape.num_tokens, 4096), (4096,)))
    cuda.rms_norm(x, weight, eps=1e-6)
    cuda.add_rms_norm(x, x.clone(), weight, eps=1e-6)
    cuda.add_rms_norm(x, x.clone(), weight.float(), eps=1e-6)
    cuda.layer_norm(x, weight, weight, eps=1e-5)
    cuda.add_layer_norm(x, x.clone(), weight, weight, eps=1e-5)


def _activations(shape: Shape) -> None:
    x = _empty(shape.num_tokens, 28672, dtype=getattr(torch, shape.dtype))
    cuda.silu_mul(x)
    cuda.gelu_tanh_mul(x)
    for kind in ("gelu_tanh", "gelu", "relu"):
        cuda.activation(x, kind)
    cuda.softcap(x.float(), 30.0)


def _experts(shape: Shape) -> None:
    dtype, (hidden, inner, num_experts, top_k) = getattr(torch, shape.dtype), shape.experts
    gate_up = _empty(num_experts, 2 * inner, hidden, dtype=dtype)
    packed = moe.PackedExperts(gate_up, _empty(num_experts, hidden, inner, dtype=dtype))
    logits = _empty(shape.num_tokens, num_experts, dtype=dtype)
    routing = cuda.route(logits, ops.RouteArgs(top_k, True))
    cuda.experts(_empty(shape.num_tokens, hidden, dtype=dtype), *routing, packed)


def _packed_experts(shape: Shape) -> None:
    """Launch experts of e4m3 in blocks of 128 x 128, int4 of 128 and W8A8; with gpt-oss's sizes those of MXFP4."""
    (hidden, inner, num_experts, top_k), dtype = shape.experts, getattr(torch, shape.dtype)
    logits = _empty(shape.num_tokens, num_experts, dtype=dtype)
    routing = cuda.route(logits, ops.RouteArgs(top_k, True))

    def stack(outputs: int, inputs: int, bits: int) -> quantized_linear.QuantizedLinear:
        padded = -(-inputs // 128) * 128
        words = _empty(num_experts * outputs, padded * bits // 32, dtype=torch.int32)
        if hidden % 256:
            scales = _empty(padded // 128, len(words), dtype=torch.int32)
            return quantized_linear.QuantizedLinear(words, scales, None, None, inputs, 16, 4, is_float=True)
        scales = _empty(inputs // 128, len(words), dtype=torch.float32)
        packed = quantized_linear.QuantizedLinear(words, scales, None, None, inputs, 32, bits, is_float=bits == 8)
        if bits == 4:
            return packed._replace(offsets=scales)
        return packed._replace(scales=scales[:, ::128].contiguous(), scale_rows=128)

    for bits in (4,) if hidden % 256 else (8, 4):
        matrices = (stack(2 * inner, hidden, bits), stack(hidden, inner, bits))
        packed = quantized_experts.QuantizedExperts(*matrices, num_experts)
        cuda.experts(_empty(shape.num_tokens, hidden, dtype=dtype), *routing, packed)
    if hidden % 256:
        return
    values = (
        _empty(num_experts * 2 * inner, hidden, dtype=torch.int8),
        _empty(num_experts * hidden, inner, dtype=torch.int8),
    )
    int8 = (int8_linear.Int8Linear(matrix, _empty(len(matrix), dtype=torch.float32), None) for matrix in values)
    packed = quantized_experts.QuantizedExperts(*int8, num_experts)
    cuda.experts(_empty(shape.num_tokens, hidden, dtype=dtype), *routing, packed)


def _fp8_experts(shape: Shape) -> None:
    """Launch experts of e4m3 whose inputs may be rounded, too: in blocks of 128 x 128, and with a scale per output."""
    (hidden, inner, num_experts, top_k), dtype = shape.experts, getattr(torch, shape.dtype)
    logits = _empty(shape.num_tokens, num_experts, dtype=dtype)
    routing = cuda.route(logits, ops.RouteArgs(top_k, True))

    def stack(outputs: int, inputs: int, num_groups: int) -> quantized_linear.QuantizedLinear:
        words, rows = _empty(num_experts * outputs, inputs // 4, dtype=torch.int32), 128 if num_groups > 1 else 1
        scales = _empty(num_groups, len(words) // rows, dtype=torch.float32)
        return quantized_linear.QuantizedLinear(
            words, scales, None, None, inputs, 32, 8, is_float=True, rounds_inputs=True, scale_rows=rows
        )

    for has_blocks in (True, False):
        sides = ((2 * inner, hidden), (hidden, inner))
        matrices = (stack(outputs, inputs, inputs // 128 if has_blocks else 1) for outputs, inputs in sides)
        packed = quantized_experts.QuantizedExperts(*matrices, num_experts)
        cuda.experts(_empty(shape.num_tokens, hidden, dtype=dtype), *routing, packed)


def _quantized(shape: Shape) -> None:
    """Launch Llama-3.1-8B's down projection: own 8 and 4 bits; with groups of 32 Q8_0 and Q4_0, or e2m1."""
    dtype = getattr(torch, shape.dtype)
    x, bias = _empty(shape.num_tokens, 14336, dtype=dtype), _empty(4096, dtype=dtype)
    scales = _empty(14336 // 128, 4096, dtype=torch.float32)
    words = _empty(4096, 14336 // 4, dtype=torch.int32)
    eight = quantized_linear.QuantizedLinear(words, scales[:1], None, bias, 14336, 32, 8, 128)
    four = quantized_linear.QuantizedLinear(words[:, : 14336 // 8].contiguous(), scales, scales, None, 14336, 32, 4)
    groups = eight._replace(scales=scales.repeat_interleave(4, dim=0).half())  # Q8_0
    signed = four._replace(scales=groups.scales, offsets=None, zero=8)  # Q4_0
    blocks = scales[:, ::128].contiguous()  # of 128 x 128
    e4m3 = eight._replace(scales=blocks, zero=0, is_float=True, scale_rows=128)
    per_row = e4m3._replace(scales=scales[:1], scale_rows=1)
    e2m1 = signed._replace(scales=scales.to(torch.int32), block=16, zero=0, is_float=True)
    plain = (groups, signed) if shape.group == 32 else (eight, four, e4m3, per_row)
    for packed in (e2m1,) if shape.cache_dtype else plain:
        if shape.num_tokens < quantized_linear.MIN_ROWS_TO_WIDEN:
            quantized_linear.multiply(x, packed)
        else:
            quantized_linear.widen(packed, dtype)


def _few(shape: Shape) -> None:
    """Launch Llama-3.1-8B's down projection, and one of Qwen3-0.6B's, whose K is split; with a gate, too."""
    for num_outputs, num_inputs in ((4096, 14336), (1024, 2048)):
        weight = _empty(num_outputs, num_inputs, dtype=getattr(torch, shape.dtype))
        x = _empty(shape.num_tokens, num_inputs, dtype=weight.dtype)
        e4m3 = fp8_linear.Fp8Linear(weight.to(torch.float8_e4m3fn), _empty(num_outputs, dtype=torch.float32), None)
        for packed in (cuda.PackedLinear(weight, None), e4m3):
            cuda.linear(x, packed)
            cuda.linear_silu_mul(x, packed)
    few_rows.multiply(x, few_rows.Weight(weight, None, weight[:, 0].contiguous()), dtype=x.dtype)


def _int8(shape: Shape) -> None:
    """Launch Llama-3.1-8B's down projection and gate_up in W8A8, and in e4m3 where cuBLAS does not multiply."""
    for num_outputs, num_inputs in ((4096, 14336), (28672, 4096)):
        scales = _empty(num_outputs, dtype=torch.float32)
        packed = int8_linear.Int8Linear(_empty(num_outputs, num_inputs, dtype=torch.int8), scales, None)
        x = _empty(shape.num_tokens, num_inputs, dtype=getattr(torch, shape.dtype))
        cuda.linear(x, packed)
        if 8 < shape.num_tokens <= fp8_linear.MAX_ROWS:
            cuda.linear(x, fp8_linear.Fp8Linear(packed.values.view(torch.float8_e4m3fn), scales, None))


def _adapters(shape: Shape) -> None:
    """Launch the adapters of an 8B model's q, k and v."""
    dtype = getattr(torch, shape.dtype)
    place = ops.AdapterPlace(0, torch.zeros(3, 2, dtype=torch.int64))
    tiles = torch.zeros(shape.num_tokens // 16, 18, dtype=torch.int64)
    cuda.add_adapters(
        _empty(shape.num_tokens, 6144, dtype=dtype), _empty(shape.num_tokens, 4096, dtype=dtype), tiles, place
    )


def _blocks(shape: Shape) -> None:
    cache = _empty(8, 8, shape.block_size, shape.head_dim, dtype=getattr(torch, shape.dtype))
    indices = torch.zeros(3, dtype=torch.int64)
    cuda.copy_blocks([cache, cache.clone()], indices, indices)


def _sampling(shape: Shape) -> None:
    logits = _empty(shape.num_tokens, 128_256, dtype=torch.float32)
    cuda.max_logits(logits)
    cuda.gumbel_argmax(logits, _empty(shape.num_tokens, dtype=torch.int64))
    shares = [_empty(shape.num_tokens, dtype=torch.float32) for _ in range(2)]
    cuda.filter_logits(logits, _empty(shape.num_tokens, dtype=torch.int32), *shares)


def _recurrent(shape: Shape) -> None:
    """Launch Qwen3.5-0.8B's delta rule, Granite 4's Mamba-2, LFM2's convolution, and the gates, with drafts."""
    dtype, num_tokens, num_rows = getattr(torch, shape.dtype), shape.num_tokens, 4
    places = _empty(num_rows + 1, dtype=torch.int32)
    ragged = ops.RaggedBatch(places, places, places[None], None, num_tokens, num_tokens)
    states = ops.StateBatch(*[places[1:]] * 4, places, places, places)

    def inputs(
        width: int, num_taps: int, num_gates: int, *state: int
    ) -> tuple[torch.Tensor, torch.Tensor, ops.StateView]:
        conv, tail = _empty(8, num_taps - 1, width, dtype=dtype), _empty(8, 4, width + num_gates, dtype=dtype)
        view = ops.StateView(conv, _empty(8, *state, dtype=torch.float32), tail)
        return _empty(num_tokens, width, dtype=dtype), _empty(num_taps, width, dtype=torch.float32), view

    heads = _empty(48, dtype=torch.float32)
    qkv, weight, view = inputs(6144, 4, 32, 16, 128, 128)
    gates = _empty(num_tokens, 32, dtype=dtype)
    cuda.gated_delta(
        qkv, gates, weight, heads, heads, view, ragged, states, num_k_heads=16, head_k_dim=128, num_v_heads=16,
        head_v_dim=128, tiles_heads=False,
    )  # fmt: skip
    qkv, weight, view = inputs(6144, 4, 16 + 2048, 16, 128, 128)
    cuda.gated_delta(
        qkv, _empty(num_tokens, 16 + 2048, dtype=dtype), weight, heads, _empty(2048, dtype=torch.float32), view, ragged,
        states, num_k_heads=16, head_k_dim=128, num_v_heads=16, head_v_dim=128, tiles_heads=False,
    )  # fmt: skip
    xbc, weight, view = inputs(48 * 64 + 256, 4, 48, 48, 128, 64)
    cuda.mamba2(
        xbc, _empty(num_tokens, 48, dtype=dtype), weight, weight[0], heads, heads, heads, view, ragged, states,
        head_dim=64, num_groups=1, state_size=128, dt_limits=(0.0, float("inf")),
    )  # fmt: skip
    _, weight, view = inputs(1024, 3, 0, 1)
    cuda.short_conv(_empty(num_tokens, 3072, dtype=dtype), weight, None, view, ragged, states)
    x = _empty(num_tokens, 2048, dtype=dtype)
    for before in (True, False):
        cuda.gated_rms_norm(x, x, x[0].float(), eps=1e-6, group_size=128 if before else 2048, norm_before_gate=before)
    cuda.gated_rms_norm(x, x, x[0].float(), eps=1e-6, group_size=128, norm_before_gate=True, is_sigmoid=True)
    for kind in ("sigmoid", "silu"):
        cuda.gate_mul(x, x, kind)


LAUNCHES: dict[str, Callable[[Shape], None]] = {
    "prefill": lambda shape: _attention(shape, query_len=shape.num_tokens, seq_len=8192),
    "decode": lambda shape: _attention(shape, query_len=1, seq_len=8192),
    "mixed": lambda shape: _attention(shape, query_len=shape.num_tokens, seq_len=8192, is_mixed=True),
    "rope": _rope,
    "latent": _latent,
    "norm": _norms,
    "activation": _activations,
    "experts": _experts,
    "packed experts": _packed_experts,
    "fp8 experts": _fp8_experts,
    "quantized": _quantized,
    "few": _few,
    "int8": _int8,
    "recurrent": _recurrent,
    "adapters": _adapters,
    "blocks": _blocks,
    "sampling": _sampling,
}

MIXTRAL_8X7B, QWEN3_30B_A3B, GPT_OSS_20B = (4096, 14336, 8, 2), (2048, 768, 128, 8), (2880, 2880, 32, 4)
SHAPES = [
    *(Shape("prefill", head_dim=dim, group=group) for dim in (64, 128) for group in (1, 4, 8)),
    *(Shape("prefill", "float16", num_tokens=tokens) for tokens in (3, 256, 2048)),
    *(Shape("prefill", head_dim=dim) for dim in (80, 256)),
    Shape("prefill", group=7, block_size=64, window=4096),
    Shape("prefill", head_dim=64, group=71),  # Falcon 7B
    *(Shape("prefill", head_dim=256, group=2, window=4096, softcap=50.0, num_tokens=n) for n in (3, 2048)),  # Gemma 2
    Shape("prefill", "float32", num_tokens=256),
    # 1 row is split, 256 are not.
    *(Shape("decode", head_dim=dim, group=group, num_tokens=256) for dim in (64, 128) for group in (1, 4, 8)),
    *(Shape("decode", head_dim=dim, num_tokens=1) for dim in (64, 80, 128, 256)),
    Shape("decode", "float16", group=16, block_size=64, window=4096, num_tokens=1),
    Shape("decode", head_dim=64, group=71, num_tokens=256),
    Shape("decode", head_dim=256, group=2, window=4096, softcap=50.0, num_tokens=1),
    Shape("decode", "float32", num_tokens=256),
    *(Shape("decode", cache_dtype="float8_e4m3fn", head_dim=dim, num_tokens=256) for dim in (64, 128, 256)),
    Shape("decode", cache_dtype="float8_e4m3fn", num_tokens=1),
    *(Shape("prefill", cache_dtype="float8_e4m3fn", head_dim=dim) for dim in (64, 128, 256)),
    Shape("prefill", cache_dtype="float8_e4m3fn", num_tokens=3),
    *(Shape("mixed", head_dim=dim, num_tokens=tokens) for dim in (64, 128, 256) for tokens in (256, 2048)),
    Shape("mixed", cache_dtype="float8_e4m3fn"),
    *(Shape("rope", head_dim=dim) for dim in (64, 80, 128, 256)),
    Shape("rope", head_dim=64, group=71),
    *(Shape("latent", group=heads, num_tokens=tokens) for heads in (16, 20, 128) for tokens in (1, 256)),
    Shape("latent", "float32", group=16, num_tokens=256),
    Shape("latent", group=16, cache_dtype="float8_e4m3fn", num_tokens=256),
    Shape("norm"),
    *(Shape("adapters", dtype, num_tokens=64) for dtype in ("bfloat16", "float16")),
    Shape("activation"),
    # Tiles of 16, 32, 64 and 128 pairs.
    *(Shape("experts", experts=MIXTRAL_8X7B, num_tokens=tokens) for tokens in (1, 64, 128, 2048)),
    *(Shape("experts", "float16", experts=QWEN3_30B_A3B, num_tokens=tokens) for tokens in (1, 2048)),
    Shape("experts", experts=(1000, 392, 60, 4), num_tokens=2048),  # cut tiles in both directions
    Shape("experts", "float32", experts=QWEN3_30B_A3B, num_tokens=1),
    *(Shape("packed experts", experts=QWEN3_30B_A3B, num_tokens=tokens) for tokens in (1, 2048)),
    *(Shape("fp8 experts", experts=QWEN3_30B_A3B, num_tokens=tokens) for tokens in (1, 512, 2048)),
    *(Shape("packed experts", experts=GPT_OSS_20B, num_tokens=tokens) for tokens in (1, 64, 2048)),
    *(Shape("quantized", num_tokens=tokens, group=group) for tokens in (1, 16, 32, 256, 2048) for group in (4, 32)),
    *(Shape("quantized", cache_dtype="e2m1", num_tokens=tokens, group=32) for tokens in (1, 16, 256)),
    Shape("quantized", "float16", num_tokens=1),
    Shape("few", num_tokens=8),
    *(Shape("int8", num_tokens=tokens) for tokens in (1, 32, 64, 256, 2048)),
    Shape("recurrent"),
    Shape("blocks"),
    Shape("sampling", "float32", num_tokens=32),
]


def _resources(cubin: bytes) -> tuple[int, int]:
    """Return (registers, spilled bytes) per thread."""
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(cuobjdump), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = RESOURCES.search(text)
    assert found, text
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def _widest_load(ptx: str) -> int:
    direct = [int(count or 1) * int(bits) // 8 for count, bits in LOAD.findall(ptx)]
    return max(direct + [int(size, 16) for size in ASYNC_LOAD.findall(ptx)])


def _waits(ptx: str) -> str:
    before, wait, _ = ptx.partition("griddepcontrol.wait")
    return ("late" if TOUCHES.search(before) else "first") if wait else ""


def _machine_code(kernel: Any) -> dict[str, Any]:
    """Return what NVIDIA's compiler says."""
    registers, spilled = _resources(kernel.asm["cubin"])
    ptx, counted = kernel.asm["ptx"], budget(kernel)
    return {
        "registers": registers,
        "spilled": spilled,
        "widest_load": _widest_load(ptx),
        "tensor_core": ", ".join(sorted(set(TENSOR_CORE.findall(ptx)))),
        "waits": _waits(ptx),
        "issue": round(100 * counted.issue, 1) if counted else 0.0,
        "conversions": round(100 * counted.conversions, 1) if counted else 0.0,
        "spills_in_loop": counted.spills if counted else 0,
    }


def _amds_machine_code(kernel: Any) -> dict[str, Any]:
    """Return what AMD's compiler says; the other fields are those of NVIDIA's."""
    text = kernel.asm["amdgcn"]
    found = dict(AMD_RESOURCES.findall(text))
    return {
        "registers": int(found["vgpr_count"]),
        "spilled": int(found["private_segment_fixed_size"]),
        "tensor_core": "mfma" if "v_mfma" in text else "",
    }


def _describe(kernel: Any, shape: Shape, arch: int) -> Compiled:
    metadata = kernel.metadata
    return Compiled(
        kernel=metadata.name.strip("_"),
        shape=str(shape),
        arch=arch,
        num_warps=metadata.num_warps,
        num_stages=metadata.num_stages,
        shared=metadata.shared,
        **(_amds_machine_code if DEVICES[arch].is_amd else _machine_code)(kernel),
    )


def compile_shapes(shapes: Iterable[Shape], arch: int) -> Iterator[Compiled]:
    """Yield every kernel that the shapes' launchers launch on a GPU of compute capability `arch` / 10."""
    assert not triton.knobs.runtime.interpret
    driver.set_active(OfflineDriver(arch))
    for name, module in list(sys.modules.items()):
        if name.startswith("splitfuse.kernels.cuda.") and "device_info" in vars(module):
            vars(module)["device_info"] = lambda device: DEVICES[arch]
    launched: list[Shape] = []  # shape of every kernel
    with compile_ahead() as kernels:
        for shape in shapes:
            LAUNCHES[shape.kind](shape)
            launched += [shape] * (len(kernels) - len(launched))
    assert all(kernel.module is not None for kernel in kernels), "compiled and not loaded"
    yield from (_describe(kernel, shape, arch) for kernel, shape in zip(kernels, launched, strict=True))


COLUMNS = {
    "kernel": 14, "shape": 38, "arch": 4, "num_warps": 5, "num_stages": 6, "registers": 4, "spilled": 7, "shared": 6,
    "widest_load": 4, "waits": 5, "issue": 5, "conversions": 5, "tensor_core": 15,
}  # fmt: skip
HEADINGS = ("kernel", "shape", "arch", "warps", "stages", "regs", "spilled", "shared", "load", "waits", "issue", "conv")
HEADINGS += ("tensor cores",)


def _line(values: Iterable[object]) -> str:
    return " ".join(f"{value!s:{width}}" for value, width in zip(values, COLUMNS.values(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", type=int, choices=DEVICES, help="one target; all of them by default")
    parser.add_argument("--kernel", choices=LAUNCHES, nargs="+", help="some kinds of kernel; all of them by default")
    parser.add_argument("--first", action="store_true", help="the first shape of each kind of kernel")
    parser.add_argument("--exact", action="store_true", help="the kernels of --exact")
    parser.add_argument("--json", action="store_true", help="one JSON object per kernel instead of a table")
    options = parser.parse_args()
    device_info.EXACT.is_on = options.exact
    if not options.json:
        print(_line(HEADINGS), flush=True)
    for arch in [options.arch] if options.arch else DEVICES:
        shapes = [shape for shape in SHAPES if not options.kernel or shape.kind in options.kernel]
        if options.first:
            shapes = list({shape.kind: shape for shape in reversed(shapes)}.values())
        for row in map(asdict, compile_shapes(shapes, arch)):
            print(json.dumps(row) if options.json else _line(row[name] for name in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
