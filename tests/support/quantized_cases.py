"""Random weights in every form of quantized files: values, groups, levels of scales."""

from typing import NamedTuple

import torch
from torch import Tensor

from splitfuse.kernels.quantize import E2M1, QuantizedWeight, powers_of_two


class Form(NamedTuple):
    """Form of a quantized weight; group 0: one scale per output."""

    bits: int
    group: int
    is_signed: bool = True
    has_offsets: bool = False
    super_group: int = 0  # 0: one level
    is_float8: bool = False
    scale_dtype: torch.dtype = torch.float16
    is_float4: bool = False
    codebook: tuple[int, ...] | None = None
    block_rows: int = 1  # outputs that share a scale


IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FORMS = {
    "Q8_0": Form(8, 32),
    "Q4_0": Form(4, 32),
    "Q4_1": Form(4, 32, is_signed=False, has_offsets=True),
    "Q5_0": Form(5, 32),
    "Q5_1": Form(5, 32, is_signed=False, has_offsets=True),
    "Q4_K": Form(4, 32, is_signed=False, has_offsets=True, super_group=256),
    "Q5_K": Form(5, 32, is_signed=False, has_offsets=True, super_group=256),
    "Q6_K": Form(6, 16, super_group=256),
    "Q2_K": Form(2, 16, is_signed=False, has_offsets=True, super_group=256),
    "Q3_K": Form(3, 16, super_group=256),
    "IQ2_XS": Form(3, 16, super_group=256, codebook=(8, 25, 43, 0, -8, -25, -43, 0)),
    "IQ2_XXS": Form(3, 32, super_group=256, codebook=(8, 25, 43, 0, -8, -25, -43, 0)),
    "IQ4_XS": Form(4, 32, super_group=256, codebook=IQ4_NL),
    "IQ4_NL": Form(4, 32, codebook=IQ4_NL),
    "TQ2_0": Form(2, 256, codebook=(-1, 0, 1, 2)),
    "NVFP4": Form(4, 16, codebook=E2M1),
    "int8 per channel": Form(8, 0, scale_dtype=torch.float32),
    "GPTQ 8 bits": Form(8, 128, is_signed=False, has_offsets=True),
    "AWQ": Form(4, 128, is_signed=False, has_offsets=True),
    "int4 of 64, float32 scales": Form(4, 64, is_signed=False, has_offsets=True, scale_dtype=torch.float32),
    "float8 of 128": Form(8, 128, is_float8=True, scale_dtype=torch.float32),
    "MXFP4": Form(4, 32, is_signed=False, is_float4=True, scale_dtype=torch.float32),
    "float8 per channel": Form(8, 0, is_float8=True, scale_dtype=torch.float32),
    "float8 in blocks": Form(8, 128, is_float8=True, scale_dtype=torch.float32, block_rows=128),
}


def random_weight(form: Form, num_outputs: int, num_inputs: int, *, seed: int = 0) -> QuantizedWeight:
    """Return a weight [num_outputs, num_inputs], values some tenths wide; the inputs are a multiple of the groups."""
    generator = torch.Generator().manual_seed(seed)
    num_groups = num_inputs // form.group if form.group else 1
    is_signed = form.is_signed and form.codebook is None
    low = -(2 ** (form.bits - 1)) if is_signed else 0
    values = torch.randint(low, low + 2**form.bits, (num_outputs, num_inputs), generator=generator)
    codes = values.to(torch.int8 if is_signed else torch.uint8)
    if form.is_float8:
        codes = torch.randn(values.shape, generator=generator).mul_(40).to(torch.float8_e4m3fn)

    def positive(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=generator) + 0.5) / 2**form.bits

    if form.is_float4:
        exponents = torch.randint(120, 126, (num_groups, num_outputs), generator=generator, dtype=torch.uint8)
        return QuantizedWeight(codes, powers_of_two(exponents), None, 4, codebook=E2M1)
    if not form.super_group:
        num_blocks = -(-num_outputs // form.block_rows)
        scales = positive(num_groups, num_blocks).to(form.scale_dtype)
        scales = scales.repeat_interleave(form.block_rows, dim=1)[:, :num_outputs].contiguous()
        offsets = (-positive(num_groups, num_outputs) * 2 ** (form.bits - 1)).to(form.scale_dtype)
        offsets = offsets if form.has_offsets else None
        return QuantizedWeight(codes, scales, offsets, form.bits, codebook=form.codebook)
    lower = [torch.randint(1, 64, (num_groups, num_outputs), generator=generator) for _ in range(2)]
    if not form.has_offsets:
        lower[0] -= 32  # scales may be negative where no offset is
    upper = [(positive(num_inputs // form.super_group, num_outputs) / 32).half() for _ in range(2)]
    dtype = torch.uint8 if form.has_offsets else torch.int8
    return QuantizedWeight(
        codes, lower[0].to(dtype), lower[1].to(dtype) if form.has_offsets else None, form.bits, upper[0],
        -upper[1] * 2 ** (form.bits - 1) if form.has_offsets else None, codebook=form.codebook,
    )  # fmt: skip
