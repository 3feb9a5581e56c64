"""CUDA backend of `ops`: our own Triton kernels, and cuBLAS for the matmuls.

No op waits for the GPU or reads a value back from it. Kernels launch on the current device, which must be the
tensors' own.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import reference
from ..altup import altup_correct as altup_correct
from ..altup import altup_predict as altup_predict
from ..altup import match_rms as match_rms
from ..altup import sparse_gelu_mul as sparse_gelu_mul
from ..arguments import SWIGLU_EXPERTS, AttentionArgs, CacheView, ExpertArgs, ExpertWeights, RaggedBatch, RouteArgs
from ..quantize import QuantizedWeight, can_quantize, dequantized, merged, quantize, round_rows
from ..quantize import unpack_codes as unpack_codes
from ..reference import add_gated as add_gated
from ..reference import rotate as rotate
from . import device_info as settings
from . import moe, moe_route, quantized_linear
from .activation import activation as activation
from .activation import gelu_tanh_mul as gelu_tanh_mul
from .activation import silu_mul as silu_mul
from .activation import softcap as softcap
from .argmax import gumbel_argmax as gumbel_argmax
from .argmax import max_logits as max_logits
from .attention_decode import decode_attention
from .attention_prefill import prefill_attention
from .copy_blocks import copy_blocks as copy_blocks
from .filter_logits import filter_logits as filter_logits
from .latent_attention import latent_attention
from .latent_queries import head_linear as head_linear
from .latent_queries import latent_and_cache as latent_and_cache
from .latent_queries import pack_heads as pack_heads
from .linear import exact_linear, few_rows, fp8_linear, int8_linear, quantized_experts
from .linear.adapters import add_adapters as add_adapters
from .linear.fp8_linear import Fp8Linear
from .linear.int8_linear import Int8Linear
from .linear.quantized_experts import QuantizedExperts
from .moe import experts as experts
from .norm import add_layer_norm as add_layer_norm
from .norm import add_rms_norm as add_rms_norm
from .norm import layer_norm as layer_norm
from .norm import rms_norm as rms_norm
from .quantized_linear import QuantizedLinear
from .recurrent_gates import gate_mul as gate_mul
from .recurrent_gates import gated_rms_norm as gated_rms_norm
from .recurrent_state import gated_delta as gated_delta
from .recurrent_state import mamba2 as mamba2
from .rope_and_cache import rope_and_cache as rope_and_cache
from .short_convolution import short_conv as short_conv


def prepare() -> None:
    """Do nothing: kernels are compiled at their first launch."""


class PackedLinear(NamedTuple):
    weight: Tensor  # [out, in], the layout of cuBLAS
    bias: Tensor | None  # [out]


def paged_attention(q: Tensor, cache: CacheView, ragged: RaggedBatch, args: AttentionArgs) -> Tensor:
    if args.value_dim:
        return latent_attention(q, cache, ragged, args)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if ragged.num_decodes is None or ragged.num_decodes:
        decode_attention(q, cache, ragged, args, out)
    has_prefills = ragged.num_decodes is None or len(ragged.seq_lens) > ragged.num_decodes
    if has_prefills:
        prefill_attention(q, cache, ragged, args, out)
    return out


class PreparedLinear(NamedTuple):
    """Weight whose inputs are reordered or rounded to int8 before the product."""

    linear: "PackedLinear | QuantizedLinear | Int8Linear"
    order: Tensor | None
    rounds_inputs: bool


class StackedLinear(NamedTuple):
    """Stack of weights of one input and different kinds."""

    parts: "list[AnyLinear]"


class Table(NamedTuple):
    """Table [V, H] for `linear` and `embedding`."""

    linear: "PackedLinear | QuantizedLinear"
    dtype: torch.dtype


AnyLinear = PackedLinear | QuantizedLinear | Fp8Linear | Int8Linear | PreparedLinear | StackedLinear | Table


def pack_linear(weight: Tensor, bias: Tensor | None = None, *, bits: int = 16, input_bits: int = 16) -> AnyLinear:
    """Pack a weight; with `input_bits` 8, inputs of 8-bit weights are rounded for the tensor cores."""
    if bits == 16 or not can_quantize(weight, bits):
        return PackedLinear(weight, bias)
    return _pack_kind(quantize(weight, bits), bias, weight.dtype, input_bits=input_bits)


def pack_quantized(
    parts: Sequence[QuantizedWeight], bias: Tensor | None = None, *, dtype: torch.dtype, input_bits: int = 16
) -> AnyLinear:
    kinds = merged(parts)
    biases = [None] * len(kinds) if bias is None else torch.split(bias, [len(kind.values) for kind in kinds])
    packed = [_pack_kind(kind, part, dtype, input_bits=input_bits) for kind, part in zip(kinds, biases, strict=True)]
    return packed[0] if len(packed) == 1 else StackedLinear(packed)


def pack_fp8(weight: Tensor, bias: Tensor | None = None) -> PackedLinear | Fp8Linear:
    return fp8_linear.pack(weight, bias) if fp8_linear.can_round(weight) else PackedLinear(weight, bias)


def pack_fp8_columns(
    weight: Tensor, places: Sequence[tuple[slice, Tensor | None]]
) -> list[PackedLinear] | list[Fp8Linear]:
    """Round a weight to e4m3, if cuBLAS takes all slices of its columns, and pack these, each with a bias."""
    if not all(fp8_linear.can_round(weight[:, columns]) for columns, _ in places):
        return [PackedLinear(weight[:, columns].contiguous(), bias) for columns, bias in places]
    values, scales = fp8_linear.round_rows(weight)
    return [Fp8Linear(values[:, columns].contiguous(), scales, bias) for columns, bias in places]


def _pack_kind(weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype, *, input_bits: int) -> AnyLinear:
    packed: PackedLinear | QuantizedLinear | Int8Linear
    if _is_int8(weight, input_bits):
        packed = int8_linear.pack(weight, bias)
    else:
        packed = _pack_in_order(weight, bias, dtype)
    rounds_inputs = weight.rounds_inputs and isinstance(packed, PackedLinear)  # the others round by themselves
    if weight.order is None and not rounds_inputs:
        return packed
    return PreparedLinear(packed, weight.order, rounds_inputs)


def _is_int8(weight: QuantizedWeight, input_bits: int) -> bool:
    """True if inputs are rounded, too: the file does so, or the user lets it be done."""
    return (weight.rounds_inputs or input_bits == 8) and int8_linear.has_layout(weight)


def _pack_in_order(weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype) -> PackedLinear | QuantizedLinear:
    """Pack a weight for inputs in the weight's own order."""
    if quantized_linear.has_layout(weight):
        return quantized_linear.pack(weight, bias)
    return PackedLinear(dequantized([weight._replace(order=None)], dtype), bias)


def linear(x: Tensor, packed: AnyLinear) -> Tensor:
    if isinstance(packed, PackedLinear):
        if settings.EXACT.is_on:
            return exact_linear.multiply(x, packed.weight, packed.bias)
        if few_rows.serves(x):
            return few_rows.multiply(x, few_rows.Weight(packed.weight, None, packed.bias), dtype=x.dtype)
        return F.linear(x, packed.weight, packed.bias)
    if isinstance(packed, QuantizedLinear):
        return quantized_linear.multiply(x, packed)
    if isinstance(packed, Fp8Linear):
        return fp8_linear.multiply(x, packed)
    if isinstance(packed, Int8Linear):
        return int8_linear.multiply(x, packed)
    if isinstance(packed, Table):
        return linear(x, packed.linear)
    if isinstance(packed, StackedLinear):
        return torch.cat([linear(x, part) for part in packed.parts], dim=1)
    if isinstance(packed, PreparedLinear):
        return linear(_prepare_inputs(x, packed), packed.linear)
    return packed.multiply(x)  # a wrapper of one of these


def _prepare_inputs(x: Tensor, packed: PreparedLinear) -> Tensor:
    if packed.rounds_inputs:
        values, scales = round_rows(x)
        x = (values * scales).to(x.dtype)
    return x if packed.order is None else x.index_select(1, packed.order)


def pack_embedding(weight: QuantizedWeight, *, dtype: torch.dtype, input_bits: int = 16) -> Table:
    assert weight.order is None
    return Table(_pack_in_order(weight, None, dtype), dtype)


def embedding(token_ids: Tensor, packed: Table) -> Tensor:
    if isinstance(packed.linear, PackedLinear):
        return packed.linear.weight.index_select(0, token_ids)
    return quantized_linear.rows(token_ids, packed.linear, dtype=packed.dtype)


def linear_silu_mul(x: Tensor, packed: AnyLinear) -> Tensor:
    if few_rows.serves(x) and not settings.EXACT.is_on:
        if isinstance(packed, Fp8Linear):
            return fp8_linear.multiply(x, packed, is_gated=True)
        if isinstance(packed, PackedLinear):
            return few_rows.multiply(x, few_rows.Weight(packed.weight, None, packed.bias), dtype=x.dtype, is_gated=True)
    return silu_mul(linear(x, packed))


def route(router_logits: Tensor, args: RouteArgs, slot_mapping: Tensor | None = None) -> tuple[Tensor, Tensor]:
    if args == RouteArgs(args.top_k, args.renormalize):
        return moe_route.route(router_logits, top_k=args.top_k, renormalize=args.renormalize, slot_mapping=slot_mapping)
    weights, ids = reference.route(router_logits, args)
    return weights, ids if slot_mapping is None else ids.masked_fill(slot_mapping[:, None] < 0, -1)


def _quantized(parts: Sequence[Tensor | QuantizedWeight], bits: int, is_fp8: bool) -> QuantizedWeight | None:
    """Return the stack of an expert's matrices of one input as files or `--quantization` round it; None if neither."""
    packed = [part for part in parts if isinstance(part, QuantizedWeight)]
    plain = [part for part in parts if isinstance(part, Tensor)]
    if packed:
        kinds = merged(packed)
        is_packed = not plain and len(kinds) == 1 and quantized_linear.has_layout(kinds[0])
        return kinds[0] if is_packed else None
    weight = torch.cat(plain)
    if is_fp8:
        values, scales = fp8_linear.round_rows(weight)
        return QuantizedWeight(values, scales[None], None, 8)
    return quantize(weight, bits) if bits < 16 and can_quantize(weight, bits) else None


def pack_experts(
    experts: Iterable[ExpertWeights], *, num_experts: int, dtype: torch.dtype, bits: int = 16, input_bits: int = 16,
    is_fp8: bool = False, args: ExpertArgs = SWIGLU_EXPERTS,
) -> moe.PackedExperts | QuantizedExperts:  # fmt: skip
    """Pack experts: quantized ones as they are, if they have a layout, else in `dtype`. Without gates: not built."""
    assert args.is_gated
    rest = iter(experts)
    first = next(rest)
    experts = chain([first], rest)
    weights = [_quantized(parts, bits, is_fp8) for parts in (first.gate_up, [first.down])]
    if all(weight is not None for weight in weights):
        quantized = (
            (_quantized(expert.gate_up, bits, is_fp8), _quantized([expert.down], bits, is_fp8), *expert[2:])
            for expert in experts
        )
        is_int8 = all(weight is not None and _is_int8(weight, input_bits) for weight in weights)
        rounds_inputs = is_fp8 or input_bits == 8  # to e4m3, as `linear` does after `pack_fp8`
        return quantized_experts.pack(
            quantized, num_experts=num_experts, args=args, is_int8=is_int8, rounds_inputs=rounds_inputs
        )

    def wide(parts: Sequence[Tensor | QuantizedWeight]) -> Tensor:
        return torch.cat([part if isinstance(part, Tensor) else dequantized([part], dtype) for part in parts])

    parts = ((wide(expert.gate_up), wide([expert.down]), expert.gate_up_bias, expert.down_bias) for expert in experts)
    return moe.pack_experts(parts, num_experts=num_experts, args=args)


def packs_adapters(dtype: torch.dtype) -> bool:
    return False
