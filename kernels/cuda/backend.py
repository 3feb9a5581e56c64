"""The CUDA backend of `ops`: Triton kernels of our own, and cuBLAS for the matmuls.

No op waits for the GPU or reads a value back from it. Kernels launch on the current device, which must be the
tensors' own.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..arguments import AttentionArgs, CacheView, RaggedBatch
from ..quantize import QuantizedWeight, can_quantize, dequantized, quantize
from . import quantized_linear
from .activation import gelu as gelu
from .activation import gelu_tanh as gelu_tanh
from .activation import gelu_tanh_mul as gelu_tanh_mul
from .activation import relu as relu
from .activation import silu_mul as silu_mul
from .activation import softcap as softcap
from .attention_decode import decode_attention
from .attention_prefill import prefill_attention
from .copy_blocks import copy_blocks as copy_blocks
from .filter_logits import filter_logits as filter_logits
from .gumbel_sample import gumbel_argmax as gumbel_argmax
from .linear import few_rows, fp8_linear
from .linear.fp8_linear import Fp8Linear
from .moe import experts as experts
from .moe import pack_experts as pack_experts
from .moe_route import route as route
from .norm import add_layer_norm as add_layer_norm
from .norm import add_rms_norm as add_rms_norm
from .norm import layer_norm as layer_norm
from .norm import rms_norm as rms_norm
from .quantized_linear import QuantizedLinear
from .rope_and_cache import rope_and_cache as rope_and_cache


def prepare() -> None:
    """Nothing needs to be prepared: kernels are compiled as they are launched."""


class PackedLinear(NamedTuple):
    weight: Tensor  # [out, in]: what cuBLAS takes as it is
    bias: Tensor | None  # [out]


def paged_attention(q: Tensor, cache: CacheView, ragged: RaggedBatch, args: AttentionArgs) -> Tensor:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if ragged.num_decodes is None or ragged.num_decodes:
        decode_attention(q, cache, ragged, args, out)
    if ragged.num_decodes is None or len(ragged.seq_lens) > ragged.num_decodes:
        prefill_attention(q, cache, ragged, args, out)
    return out


def pack_linear(weight: Tensor, bias: Tensor | None = None, *, bits: int = 16) -> PackedLinear | QuantizedLinear:
    if bits == 16 or not can_quantize(weight, bits):
        return PackedLinear(weight, bias)
    return quantized_linear.pack(quantize(weight, bits), bias)


def pack_quantized(
    parts: Sequence[QuantizedWeight], bias: Tensor | None = None, *, dtype: torch.dtype
) -> PackedLinear | QuantizedLinear:
    return pack_linear(dequantized(parts, dtype), bias)


def pack_fp8(weight: Tensor, bias: Tensor | None = None) -> PackedLinear | Fp8Linear:
    return fp8_linear.pack(weight, bias) if fp8_linear.can_round(weight) else PackedLinear(weight, bias)


def linear(x: Tensor, packed: PackedLinear | QuantizedLinear | Fp8Linear) -> Tensor:
    if isinstance(packed, QuantizedLinear):
        return quantized_linear.multiply(x, packed)
    if isinstance(packed, Fp8Linear):
        return fp8_linear.multiply(x, packed)
    if few_rows.serves(x):
        return few_rows.multiply(x, few_rows.Weight(packed.weight, None, packed.bias), dtype=x.dtype)
    return F.linear(x, packed.weight, packed.bias)


def linear_silu_mul(x: Tensor, packed: PackedLinear | QuantizedLinear | Fp8Linear) -> Tensor:
    if isinstance(packed, QuantizedLinear) or not few_rows.serves(x):
        return silu_mul(linear(x, packed))
    if isinstance(packed, Fp8Linear):
        return fp8_linear.multiply(x, packed, is_gated=True)
    return few_rows.multiply(x, few_rows.Weight(packed.weight, None, packed.bias), dtype=x.dtype, is_gated=True)
