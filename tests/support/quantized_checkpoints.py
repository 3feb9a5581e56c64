"""Quantized checkpoints of tiny models by each format's definition, and the most literal dequantization of them.

AWQ, GPTQ and FP8 are written out here; for compressed-tensors its own package must be installed.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_models import save_model, write_config
from torch import Tensor

# Tensors of a linear by the ends of their names, and the weight [N, K] that they stand for.
Written = tuple[dict[str, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """Case of a format: its quantization_config, and its writer of a weight [N, K]."""

    config: dict[str, Any]
    write: Callable[[Tensor], Written]


def _word_of(values: Tensor, bits: int) -> Tensor:
    """Pack columns into words, the first column lowest, as signed int32: [R, 32 / bits] → [R]."""
    word = torch.stack([values[:, slot].long() << (slot * bits) for slot in range(32 // bits)]).sum(0)
    return torch.where(word < 2**31, word, word - 2**32).int()


def _value(words: Tensor, slot: int, bits: int) -> Tensor:
    """Return the value in one slot of every word."""
    return (words.long() >> (slot * bits)) & (2**bits - 1)


def _rounded(weight: Tensor, groups: list[list[int]], bits: int, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return (q [N, K], zeros [G, N], scales [G, N] float16); the inputs of a group need not be neighbours."""
    levels, middle = 2**bits - 1, 2 ** (bits - 1)
    q = torch.empty(weight.shape, dtype=torch.int64)
    zeros = torch.full((len(groups), len(weight)), middle)
    scales = torch.empty(len(groups), len(weight), dtype=torch.float16)
    for index, inputs in enumerate(groups):
        part = weight[:, inputs]
        if symmetric:
            scales[index] = part.abs().amax(1) / (middle - 1)
        else:
            scales[index] = (part.amax(1) - part.amin(1)) / levels
            # From 1: GPTQ's first version stores zeros less 1.
            zeros[index] = (-part.amin(1) / scales[index].float()).round().clamp(1, levels).long()
        steps = (part / scales[index].float()[:, None]).round().long()
        q[:, inputs] = (steps + zeros[index][:, None]).clamp(0, levels)
    return q, zeros, scales


def _groups(num_inputs: int, size: int) -> list[list[int]]:
    size = num_inputs if size == -1 else size
    return [list(range(start, start + size)) for start in range(0, num_inputs, size)]


def awq(bits: int, size: int) -> Case:
    """Write AWQ: outputs 0, 2, 4, 6, 1, 3, 5, 7 share a word in this order, and with 8 bits 0, 2, 1, 3."""
    order = [0, 2, 4, 6, 1, 3, 5, 7] if bits == 4 else [0, 2, 1, 3]

    def packed(rows: Tensor) -> Tensor:
        return torch.stack([_word_of(part[:, order], bits) for part in rows.split(len(order), dim=1)], dim=1)

    def unpacked(rows: Tensor) -> Tensor:
        places = [divmod(column, len(order)) for column in range(rows.shape[1] * len(order))]
        return torch.stack([_value(rows[:, word], order.index(place), bits) for word, place in places], dim=1)

    def write(weight: Tensor) -> Written:
        groups = _groups(weight.shape[1], size)
        q, zeros, scales = _rounded(weight, groups, bits, symmetric=False)
        tensors = {"qweight": packed(q.T), "qzeros": packed(zeros), "scales": scales}
        read, read_zeros = unpacked(tensors["qweight"]), unpacked(tensors["qzeros"])
        dequantized = torch.empty(weight.shape)
        for index, inputs in enumerate(groups):
            for k in inputs:
                dequantized[:, k] = (read[k] - read_zeros[index]) * scales[index].float()
        return tensors, dequantized

    config = {"quant_method": "awq", "bits": bits, "group_size": size, "version": "gemm", "zero_point": True}
    return Case({**config, "modules_to_not_convert": ["lm_head"]}, write)


def gptq(bits: int, size: int, *, version: int = 1, symmetric: bool = False, act_order: bool = False) -> Case:
    """Write GPTQ: inputs share a word. Version 1 stores zeros less 1."""
    per_word = 32 // bits

    def write(weight: Tensor) -> Written:
        num_inputs = weight.shape[1]
        generator = torch.Generator().manual_seed(num_inputs)
        order = torch.randperm(num_inputs, generator=generator).tolist() if act_order else list(range(num_inputs))
        groups = [[order[place] for place in places] for places in _groups(num_inputs, size)]
        q, zeros, scales = _rounded(weight, groups, bits, symmetric=symmetric)
        g_idx = torch.empty(num_inputs, dtype=torch.int32)
        for index, inputs in enumerate(groups):
            g_idx[inputs] = index
        stored = zeros - 1 if version == 1 else zeros
        tensors = {
            "qweight": torch.stack([_word_of(part, bits) for part in q.split(per_word, dim=1)]),
            "qzeros": torch.stack([_word_of(part, bits) for part in stored.split(per_word, dim=1)], dim=1),
            "scales": scales,
            "g_idx": g_idx,
        }
        return tensors, dequantized(tensors, weight.shape)

    def dequantized(tensors: dict[str, Tensor], shape: torch.Size) -> Tensor:
        out = torch.empty(shape)
        places = [divmod(n, per_word) for n in range(shape[0])]
        zeros = torch.stack([_value(tensors["qzeros"][:, word], slot, bits) for word, slot in places], dim=1)
        for k in range(shape[1]):
            group = int(tensors["g_idx"][k])
            q = _value(tensors["qweight"][k // per_word], k % per_word, bits)
            out[:, k] = (q - zeros[group] - int(version == 1)) * tensors["scales"][group].float()
        return out

    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": symmetric, "desc_act": act_order}
    return Case({**config, "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}, write)


def fp8(block: tuple[int, int] | None) -> Case:
    """Write FP8 with DeepSeek's blocks, or one scale for all."""

    def write(weight: Tensor) -> Written:
        rows, columns = block or weight.shape
        values = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
        scales = torch.empty(-(-len(weight) // rows), -(-weight.shape[1] // columns))
        dequantized = torch.empty(weight.shape)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                part = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
                scales[i, j] = weight[part].abs().max() / 448
                values[part] = (weight[part] / scales[i, j]).to(torch.float8_e4m3fn)
                dequantized[part] = values[part].float() * scales[i, j]
        if block is None:
            return {"weight": values, "weight_scale": scales[0, 0], "input_scale": torch.tensor(0.1)}, dequantized
        return {"weight": values, "weight_scale_inv": scales}, dequantized

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
    return Case({**config, "weight_block_size": None if block is None else list(block)}, write)


_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
NF4 = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
])  # fmt: skip


def _nearest(values: Tensor, levels: Tensor) -> Tensor:
    return (values[..., None] - levels).abs().argmin(-1).to(torch.uint8)


def modelopt(algorithm: str) -> Case:
    """Write ModelOpt's FP8 with a scale per output, or NVFP4 with the lower half of a byte first."""

    def write(weight: Tensor) -> Written:
        if algorithm == "FP8":
            scales = weight.abs().amax(1) / 448
            values = (weight / scales[:, None]).to(torch.float8_e4m3fn)
            parts = {"weight": values, "weight_scale": scales, "input_scale": torch.tensor(0.1)}
            return parts, values.float() * scales[:, None]
        unit = weight.abs().max() / (6 * 448)
        groups = weight.view(len(weight), -1, 16)
        scales = (groups.abs().amax(2) / 6 / unit).to(torch.float8_e4m3fn)
        steps = (scales.float() * unit)[..., None]
        codes = _nearest(groups / steps, _E2M1)
        pairs = codes.view(len(weight), -1, 2)
        parts = {"weight": pairs[..., 0] | pairs[..., 1] << 4, "weight_scale": scales, "weight_scale_2": unit}
        return parts, (_E2M1[codes.int()] * steps).view(weight.shape)

    return Case({"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}, write)


def bitsandbytes(kind: str) -> Case:
    """Write NF4 with rounded scales, the upper half of a byte first, or int8 with a scale per output.

    The dequantized weight has numbers of NF4 that are rounded to 112ths, as the engine does.
    """

    def write(weight: Tensor) -> Written:
        if kind == "int8":
            scales = weight.abs().amax(1)
            values = (weight * (127 / scales[:, None])).round().to(torch.int8)
            parts = {"weight": values, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
            return parts, values * (scales / 127)[:, None]
        blocks = weight.reshape(-1, 64)  # perhaps over the end of a row
        absmax = blocks.abs().amax(1)
        offset, levels = absmax.mean(), torch.linspace(-1, 1, 256)
        runs = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
        nested = runs.abs().amax(1)
        rounded = _nearest(runs / nested[:, None], levels)
        absmax = (levels[rounded.int()] * nested[:, None]).flatten()[: len(absmax)] + offset
        codes = _nearest(blocks / absmax[:, None], NF4)
        state = {
            "quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape),
            "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset.item(),
        }  # fmt: skip
        parts = {
            "weight": (codes.flatten()[::2] << 4 | codes.flatten()[1::2])[:, None],
            "weight.absmax": rounded.flatten()[: len(absmax)].clone(),
            "weight.quant_map": NF4.clone(),
            "weight.nested_absmax": nested,
            "weight.nested_quant_map": levels,
            "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
        }
        numbers = (NF4 * 112).round() / 112
        return parts, (numbers[codes.int()] * absmax[:, None]).view(weight.shape)

    is_4bit = kind == "nf4"
    config = {"quant_method": "bitsandbytes", "load_in_4bit": is_4bit, "load_in_8bit": not is_4bit}
    return Case({**config, "bnb_4bit_quant_type": kind if is_4bit else "fp4"}, write)


def torchao(kind: str) -> Case:
    """Write torchao's int4 with zero points, two a byte, or int8 with a scale per output."""

    def write(weight: Tensor) -> Written:
        if kind == "int8":
            scales = weight.abs().amax(1, keepdim=True) / 127
            values = (weight / scales).round().to(torch.int8)
            return {"_weight_qdata": values, "_weight_scale": scales}, values * scales
        groups = weight.view(len(weight), -1, 32)
        scales = (groups.amax(2) - groups.amin(2)) / 15
        zeros = (groups.amin(2) + 8 * scales).half().float()
        scales = scales.half().float()
        codes = ((groups - zeros[..., None]) / scales[..., None]).round().clamp(-8, 7).to(torch.int8)
        pairs = codes.view(len(weight), -1, 2)
        parts = {"_weight_qdata": pairs[..., 0] & 15 | pairs[..., 1] << 4}
        parts |= {"_weight_scale": scales.half().T.contiguous(), "_weight_zero_point": zeros.half().T.contiguous()}
        return parts, (codes * scales[..., None] + zeros[..., None]).view(weight.shape)

    return Case({"quant_method": "torchao", "quant_type": {"default": {"_type": kind}}}, write)


def auto_round(case: Case, layout: str) -> Case:
    """Write AutoRound: the tensors of another format, and the name of a linear with other bits."""
    shared = {name: case.config[name] for name in ("bits", "group_size")}
    config = {"quant_method": "auto-round", "packing_format": layout, "extra_config": {"lm_head": {"bits": 16}}}
    return Case({**shared, **config, "sym": False}, case.write)


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None = None, *, packed: bool = False) -> Case:
    """Compress and decompress with the package."""
    kind = "pack-quantized" if packed else "float-quantized" if weights.get("type") == "float" else "int-quantized"
    kind = {"4tensor_group": "nvfp4-pack-quantized", "4group": "mxfp4-pack-quantized", "8group": "mxfp8-quantized"}.get(
        f"{weights['num_bits']}{weights['strategy']}" if kind == "float-quantized" else "", kind
    )
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": kind}
    config = {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}}

    def write(weight: Tensor) -> Written:
        from compressed_tensors.compressors import mxfp4, mxfp8, nvfp4
        from compressed_tensors.compressors.naive_quantized import NaiveQuantizationCompressor
        from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

        args = QuantizationArgs(**weights)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        low, high = (_reduced(weight, args, largest=largest) for largest in (False, True))
        state = {"weight": weight}
        if args.strategy == "tensor_group":
            state["weight_global_scale"] = generate_gparam(weight.amin(), weight.amax())
        scales, zeros = calculate_qparams(low, high, args, global_scale=state.get("weight_global_scale"))
        state |= {"weight_scale": scales, "weight_zero_point": zeros}
        compressor = {
            "nvfp4-pack-quantized": nvfp4.NVFP4PackedCompressor, "mxfp4-pack-quantized": mxfp4.MXFP4PackedCompressor,
            "mxfp8-quantized": mxfp8.MXFP8QuantizationCompressor, "pack-quantized": PackedQuantizationCompressor,
        }.get(kind, NaiveQuantizationCompressor)  # fmt: skip
        tensors = compressor.compress(state, scheme)
        dequantized: Tensor = compressor.decompress(tensors, scheme)["weight"].float().contiguous()
        if "weight_global_scale" in tensors:  # the package's products are in bfloat16
            packed, steps = tensors["weight_packed"], tensors["weight_scale"].float() / tensors["weight_global_scale"]
            codes = torch.stack((packed & 15, packed >> 4), dim=-1).view(len(weight), -1, 16)
            dequantized = (_E2M1[codes.int()] * steps[..., None]).view(weight.shape)
        return {part: tensor.contiguous() for part, tensor in tensors.items()}, dequantized

    return Case({**config, "ignore": ["lm_head", "re:.*gate$"], "quantization_status": "compressed"}, write)


def _reduced(weight: Tensor, args: Any, *, largest: bool) -> Tensor:
    """Return the largest or smallest of the values that share a scale, in the shape of the scales."""
    reduce = torch.amax if largest else torch.amin
    if args.strategy == "tensor":
        return reduce(weight, dim=(0, 1)).reshape(1)
    if args.strategy == "block":
        rows, columns = args.block_structure
        bands = [torch.stack([reduce(b, dim=(0, 1)) for b in band.split(columns, 1)]) for band in weight.split(rows)]
        return torch.stack(bands)
    size = args.group_size if args.strategy in ("group", "tensor_group") else weight.shape[1]
    return torch.stack([reduce(part, dim=1) for part in weight.split(size, dim=1)], dim=1)


def has_compressed_tensors() -> bool:
    """True if the package can be imported: only the import reveals a missing dependency of its own."""
    try:
        import compressed_tensors.compressors  # noqa: F401
    except ImportError:
        return False
    return True


def save_quantized(model: str, case: Case, folder: Path) -> tuple[Path, dict[str, Tensor]]:
    """Write one of CONFIGS of tiny_models into `folder`, its linears quantized.

    Returns a folder beside it with the dequantized weights for transformers, and these by their names.
    """
    plain = folder.with_name(f"{folder.name}-dequantized")
    save_model(model, plain)
    tensors = load_file(plain / "model.safetensors")
    dequantized, quantized = {}, {}
    for name, tensor in tensors.items():
        if _is_linear(name, tensor):
            parts, dequantized[name] = case.write(tensor)
            quantized |= {f"{name.removesuffix('weight')}{part}": each for part, each in parts.items()}
        else:
            quantized[name] = tensor
    shutil.copytree(plain, folder)
    save_file({**tensors, **dequantized}, plain / "model.safetensors", metadata={"format": "pt"})
    save_file(quantized, folder / "model.safetensors", metadata={"format": "pt"})
    write_config(folder, quantization_config=json.loads(json.dumps(case.config)))
    return plain, dequantized


def _is_linear(name: str, tensor: Tensor) -> bool:
    """True for a weight that quantizers quantize: no embedding, head or router."""
    return (tensor.ndim == 2 and name.endswith("_proj.weight")) or ".experts." in name


_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
_STATIC = {**_TOKEN, "strategy": "tensor", "dynamic": False}
_CHANNEL = {"num_bits": 8, "strategy": "channel"}
_FP8 = {"num_bits": 8, "type": "float"}
CASES = {
    "awq": awq(4, 32),
    "awq-one-group": awq(4, -1),
    "awq-8": awq(8, 32),
    "gptq": gptq(4, 32),
    "gptq-symmetric": gptq(4, 16, symmetric=True),
    "gptq-v2": gptq(4, 32, version=2),
    "gptq-act-order": gptq(4, 32, act_order=True),
    "gptq-8": gptq(8, -1, symmetric=True),
    "gptq-8-act-order": gptq(8, 16, act_order=True, version=2),
    "w4a16": compressed({"num_bits": 4, "strategy": "group", "group_size": 32}, packed=True),
    "w4a16-asymmetric": compressed(
        {"num_bits": 4, "strategy": "group", "group_size": 16, "symmetric": False}, packed=True
    ),
    "w4a16-channel": compressed({"num_bits": 4, "strategy": "channel"}, packed=True),
    "w8a16": compressed(_CHANNEL, packed=True),
    "w8a16-asymmetric": compressed({**_CHANNEL, "symmetric": False}, packed=True),
    "w8a8": compressed(_CHANNEL, _TOKEN),
    "w8a8-static": compressed({"num_bits": 8, "strategy": "tensor"}, _STATIC),
    "int8-asymmetric": compressed({**_CHANNEL, "symmetric": False}, _STATIC),
    "fp8-static": compressed({**_FP8, "strategy": "tensor"}, {**_STATIC, "type": "float"}),
    "fp8-dynamic": compressed({**_FP8, "strategy": "channel"}, {**_TOKEN, "type": "float"}),
    "fp8-block": compressed({**_FP8, "strategy": "block", "block_structure": [64, 64]}),
    "nvfp4": compressed({**_FP8, "num_bits": 4, "strategy": "tensor_group", "group_size": 16}),
    "mxfp4": compressed({**_FP8, "num_bits": 4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}),
    "mxfp8": compressed({**_FP8, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}),
    "modelopt-fp8": modelopt("FP8"),
    "modelopt-nvfp4": modelopt("NVFP4"),
    "torchao-int4": torchao("int4"),
    "torchao-int8": torchao("int8"),
    "bnb-nf4": bitsandbytes("nf4"),
    "bnb-int8": bitsandbytes("int8"),
    "auto-round-gptq": auto_round(gptq(4, 32), "auto_round:auto_gptq"),
    "auto-round-awq": auto_round(awq(4, 32), "auto_round:auto_awq"),
    "deepseek": fp8((64, 64)),
    "fp8-per-tensor": fp8(None),
}
# Other families, with formats of other kinds: biases, fused matrices, experts.
OTHERS = [
    ("qwen2", "awq"), ("phi3-window", "gptq-act-order"), ("mixtral-window", "w4a16"), ("qwen3-moe", "deepseek"),
    ("deepseek-v2", "deepseek"),
]  # fmt: skip
