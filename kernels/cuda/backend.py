"""The CUDA backend of `ops`: Triton kernels of our own, and cuBLAS for the matmuls.

No op waits for the card or reads a value back from it. Kernels launch on the current device, which must be the
tensors' own.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops import RaggedBatch
from ..quantize import can_quantize, quantize
from . import quantized_linear
from .activation import gelu, gelu_tanh, gelu_tanh_mul, relu, silu_mul, softcap
from .attention_decode import decode_attention
from .attention_prefill import prefill_attention
from .copy_blocks import copy_blocks
from .filter_logits import filter_logits
from .gumbel_sample import gumbel_argmax
from .moe import experts, pack_experts
from .moe_route import route
from .norm import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from .quantized_linear import QuantizedLinear
from .rope_and_cache import rope_and_cache

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "copy_blocks",
    "experts",
    "filter_logits",
    "gelu",
    "gelu_tanh",
    "gelu_tanh_mul",
    "gumbel_argmax",
    "layer_norm",
    "linear",
    "pack_experts",
    "pack_linear",
    "paged_attention",
    "relu",
    "rms_norm",
    "rope_and_cache",
    "route",
    "silu_mul",
    "softcap",
]


class PackedLinear(NamedTuple):
    weight: Tensor  # [out, in]: what cuBLAS takes as it is
    bias: Tensor | None  # [out]


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    ragged: RaggedBatch,
    *,
    scale: float,
    sliding_window: int = 0,
    softcap: float = 0.0,
    kv_scales: Tensor | None = None,
) -> Tensor:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    options: dict[str, Any] = {
        "scale": scale, "sliding_window": sliding_window, "softcap": softcap, "kv_scales": kv_scales,
    }  # fmt: skip
    if ragged.num_decodes:
        decode_attention(q, k_cache, v_cache, ragged, out, **options)
    if len(ragged.seq_lens) > ragged.num_decodes:
        prefill_attention(q, k_cache, v_cache, ragged, out, **options)
    return out


def pack_linear(weight: Tensor, bias: Tensor | None = None, *, bits: int = 16) -> PackedLinear | QuantizedLinear:
    if bits == 16 or not can_quantize(weight, bits):
        return PackedLinear(weight, bias)
    return quantized_linear.pack(quantize(weight, bits), bias)


def linear(x: Tensor, packed: PackedLinear | QuantizedLinear) -> Tensor:
    if isinstance(packed, QuantizedLinear):
        return quantized_linear.multiply(x, packed)
    return F.linear(x, packed.weight, packed.bias)
