"""Memory that a model's weights will take, computed without reading them: its family is given shapes for tensors.

Only headers are read, of a GGUF file or of quantized safetensors. Sizes follow the kernels' layouts.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import QuantizedWeight, can_quantize, quantize
from ...formats.gguf.tensor_types import TensorType
from ...formats.tensor_entry import TensorEntry, tensor_entries
from ...formats.weights import files_and_names
from .config import ModelConfig
from .registry import model_class

_ZEROS, _SCALES = ("qzeros", "weight_zero_point"), ("scales", "weight_scale")
_CONVOLUTIONS = ("conv1d.weight", "conv.conv.weight")  # kept in float32
_PARTS_OF_EXPERTS = ("_proj_blocks", "_proj_scales")
_POSITIONS = ("wpe.weight", "embed_positions.weight", "embed_tokens_per_layer.weight")  # tables that are added
_ROUNDED = {"int8": 8, "int4": 4}  # --quantization: bits
_CPU_MULTIPLE = 32  # the CPU's layout pads outputs and inputs to a multiple of this (kernels/cpu/linear.py)


@dataclass(frozen=True, kw_only=True)
class WeightLayout:
    """Layout of weights in memory: dtype, quantization, device."""

    dtype: torch.dtype
    quantization: str | None  # value of `--quantization`
    is_gpu: bool

    def matrix_bytes(self, shape: tuple[int, ...], *, stored_bytes: float | None = None, is_head: bool = False) -> int:
        """Return the bytes of a matrix [N, K]. `stored_bytes`: size of a weight that the files quantize."""
        num_bytes = prod(shape) * self._bits(shape[-1], is_head=is_head) / 8 if stored_bytes is None else stored_bytes
        if self.is_gpu:
            return int(num_bytes)
        padded = prod(-(-size // _CPU_MULTIPLE) * _CPU_MULTIPLE for size in shape)
        return int(num_bytes * padded / prod(shape))

    def table_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a table whose rows are looked up or added."""
        return prod(shape) * self.dtype.itemsize

    def _bits(self, num_inputs: int, *, is_head: bool) -> float:
        """Return the bits of a value with its share of scales and offsets. A head keeps at least 8 (decoder.py)."""
        row = torch.zeros(1, num_inputs)
        bits = 8 if is_head and self.quantization == "int4" else _ROUNDED.get(self.quantization or "", 16)
        if bits < 16 and can_quantize(row, bits):
            return quantize(row, bits).packed_bits(is_gpu=self.is_gpu)
        if self.quantization == "fp8" and self.is_gpu and not is_head:
            return 8 + 32 / num_inputs
        return self.dtype.itemsize * 8


class ShapeSource:
    """WeightSource of tensors without memory that records which tensors were taken."""

    def __init__(self, names: Collection[str] | None, *, dtype: torch.dtype) -> None:
        """`names`: the existing tensors; None: every name exists."""
        self._names = names
        self._dtype = dtype
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.packed: set[str] = set()  # weights that stay as the files quantize them, if they do

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self.shapes[name] = shape
        return torch.empty(shape, dtype=self._dtype, device="meta")

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
        self.packed.add(name)
        return None

    def has(self, name: str) -> bool:
        return self._names is None or name in self._names

    def unread(self) -> list[str]:
        return []


def planned_weight_bytes(
    folder: Path, config: ModelConfig, layout: WeightLayout, *, max_model_len: int, num_ranks: int = 1
) -> int:
    """Return one rank's bytes of weights and tables of angles; `num_ranks` share the matrices evenly.

    Raises ConfigError.
    """
    stored = _stored_bytes(folder, config, is_gpu=layout.is_gpu)
    source = ShapeSource(stored.keys() or None, dtype=layout.dtype)
    family = model_class(config.architecture, impl=config.impl)
    family(
        config,
        source,
        device=torch.device("meta"),
        max_model_len=max_model_len,
        dtype=layout.dtype,
        has_fp8_weights=layout.is_gpu and layout.quantization is not None,  # any kind: a family may refuse
    )
    plain, whole, shared = replace(layout, quantization=None), 0, 0
    stacks: dict[tuple[str, int], int] = defaultdict(int)  # total outputs of the matrices that are stacked into one
    for name, shape in source.shapes.items():
        stored_bytes = stored.get(name) if name in source.packed else None
        is_embedding = name.endswith(f"{family.names.embed}.weight") and stored_bytes is None
        if name.endswith(_CONVOLUTIONS):
            whole += prod(shape) * torch.float32.itemsize
        elif len(shape) < 2 or name.endswith("_bias"):
            whole += layout.table_bytes(shape)
        elif is_embedding or name.endswith(_POSITIONS):
            shared += layout.table_bytes(shape) + is_embedding * _tied_head_bytes(config, layout, shape)
        elif name.endswith(".v_b_proj.weight"):
            pass  # counted with the keys' matrices
        elif name.endswith((".kv_b_proj.weight", ".k_b_proj.weight")):  # widened, whatever the files have
            shared += sum(config.num_heads * plain.matrix_bytes(shape) for shape in _head_shapes(config))
        elif name.endswith(family.unrounded) and stored_bytes is None:
            shared += plain.matrix_bytes(shape)
        elif name.endswith("lm_head.weight") or stored_bytes is not None:
            shared += layout.matrix_bytes(shape, stored_bytes=stored_bytes, is_head=True)
        else:
            stacks[name.rsplit(".", 2)[0], shape[-1]] += prod(shape[:-1])
    shared += sum(layout.matrix_bytes((size, num_inputs)) for (_, num_inputs), size in stacks.items())
    angles = sum(max_model_len * rope.rotary_dim * torch.float32.itemsize for rope in dict.fromkeys(config.ropes))
    return whole + angles + -(-shared // num_ranks)


def _head_shapes(config: ModelConfig) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of the matrices of keys and of values that latent attention has for each head."""
    rank, nope, width = (config.hf_config[name] for name in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"))
    return (rank, nope), (width, rank)


def _expert_bytes(entry: TensorEntry) -> Iterator[tuple[str, float]]:
    """Yield (name, bytes) of each expert's matrices of a tensor that all experts of a layer share (mxfp4.py)."""
    experts, _, part = entry.name.rpartition(".")
    halves = ("gate_proj", "up_proj") if part.startswith("gate_up") else ("down_proj",)
    for expert in range(entry.shape[0]):
        for half in halves:
            yield f"{experts}.{expert}.{half}.weight", entry.num_bytes / entry.shape[0] / len(halves)


def _tied_head_bytes(config: ModelConfig, layout: WeightLayout, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tied head: a second layout of the embedding, except on a GPU that does not round it."""
    shares_memory = layout.is_gpu and layout.quantization not in ("int8", "int4")
    return 0 if shares_memory or not config.tie_word_embeddings else layout.matrix_bytes(shape, is_head=True)


def _stored_bytes(folder: Path, config: ModelConfig, *, is_gpu: bool) -> dict[str, float | None]:
    """Map tensor names to bytes, or None for a tensor that is not quantized; {} if no header needs to be read."""
    if folder.is_file():
        from ...formats.gguf.places import places_in  # here: most models are folders

        return {name: _gguf_bytes(place, is_gpu=is_gpu) for name, place in places_in(folder).items()}
    if config.quantization is None:
        return {}
    is_symmetric = config.hf_config["quantization_config"].get("sym", False)
    found = _safetensors_bytes(folder, is_symmetric=is_symmetric, is_gpu=is_gpu)
    if config.hf_config.get("is_text_part"):
        from ...formats.text_part import text_names  # here: most models are text alone

        return {ours: found[name] for ours, name in text_names(found).items()}
    return found


def _gguf_bytes(place: Any, *, is_gpu: bool) -> float | None:
    shape = place.shape
    if not place.info.type.is_quantized or len(shape) != 2 or place.adds_one:
        return None
    num_values: int = prod(shape)
    return num_values * _bits_of_block(place.info.type, is_gpu=is_gpu) / 8


@cache
def _bits_of_block(kind: TensorType, *, is_gpu: bool) -> float:
    """Return the bits of a value in a GGUF type, from an empty block."""
    from ...formats.gguf.blocks import quantized

    return quantized(torch.zeros(1, kind.block_bytes, dtype=torch.uint8), kind.name).packed_bits(is_gpu=is_gpu)


def _safetensors_bytes(folder: Path, *, is_symmetric: bool, is_gpu: bool) -> dict[str, float | None]:
    """Like _stored_bytes, of safetensors: a weight is several tensors (NAME.qweight, NAME.scales) or one byte a value.

    Zeros become offsets; offsets and scales become float32. Symmetric zeros take no memory. Scales of a byte become 2
    bytes, on a GPU 4, but MXFP4's stay.
    """
    entries = [entry for path, _ in files_and_names(folder) for entry in tensor_entries(path)]
    plain = {entry.name for entry in entries if entry.name.endswith(".weight") and entry.dtype.itemsize > 1}
    with_offsets = {entry.name.rpartition(".")[0] for entry in entries if entry.name.endswith(_ZEROS)}
    sums, names = defaultdict[str, float](float), {entry.name for entry in entries}
    for entry in entries:
        if entry.name.endswith(_PARTS_OF_EXPERTS):
            sums |= {name: sums[name] + size for name, size in _expert_bytes(entry)}
            continue
        stem, _, part = entry.name.rpartition(".")
        if stem.endswith(".weight"):  # bitsandbytes: NAME.weight.absmax
            sums[stem] += 4 * prod(entry.shape) if part == "absmax" else 0
            continue
        if part in ("bias", "g_idx", *_ZEROS) or f"{stem}.weight" in plain:
            continue
        has_offsets = part in _SCALES and stem in with_offsets and not is_symmetric
        is_narrow = part in _SCALES and (
            entry.dtype == torch.float8_e4m3fn or (entry.dtype == torch.uint8 and f"{stem}.weight_packed" not in names)
        )
        size = entry.num_bytes * (4 if is_gpu else 2) if is_narrow else entry.num_bytes
        sums[f"{stem}.weight"] += 8 * prod(entry.shape) if has_offsets else size
    return {entry.name: None for entry in entries} | sums
