"""Place: a checkpoint name's tensor in a GGUF file. Imports no torch."""

import re
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import NamedTuple

from ...errors import ConfigError
from .architectures import RESHAPED, ROPE_FACTORS, Architecture, architecture_of
from .file import GgufFile, TensorInfo, read_gguf
from .keys import Keys

_BARE = ("_bias", "_scale", "_scalar")  # ends of names that are parameters of their own
_HEADS = ("attn_q_norm", "attn_k_norm")  # a row for each head, if the family names heads
_MAX_EXPERTS = 4096
_MAX_EXTRA_LAYERS = 16


class Place(NamedTuple):
    """Place of a checkpoint name's tensor in the file, and the converter's changes to it."""

    info: TensorInfo
    expert: int | None = None  # index among the matrices that the tensor holds
    num_rotated_heads: int = 0  # heads whose two halves of rows were interleaved
    adds_one: bool = False
    is_transposed: bool = False  # relative to the checkpoint
    is_reshaped: bool = False  # dimensions of size 1 were added or left out, or a vector was cut into groups
    is_negated_exp: bool = False  # -exp of the checkpoint's values
    rows: tuple[int, int] | None = None  # first row and row after the last, within a matrix of several

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        if self.expert is not None:
            return self.info.shape[1:]
        return self.info.shape if self.rows is None else (self.rows[1] - self.rows[0], *self.info.shape[1:][-1:])

    @property
    def span(self) -> tuple[int, int]:
        """First byte in the file, and number of bytes."""
        if self.expert is None and self.rows is None:
            return self.info.offset, self.info.num_bytes
        first, end = self.rows or (self.expert or 0, (self.expert or 0) + 1)
        counted = 1 if self.rows is None else max(1, len(self.info.shape) - 1)  # dimensions: experts', or rows'
        row = self.info.num_bytes // prod(self.info.shape[:counted])
        return self.info.offset + first * row, (end - first) * row


def places_in(path: Path) -> dict[str, Place]:
    """Return the places of a file's tensors, like `places`."""
    return places(read_gguf(path))


def places(file: GgufFile) -> dict[str, Place]:
    """Map checkpoint names to the places of their tensors. Unknown tensors keep their names. Raises ConfigError."""
    architecture, keys = architecture_of(file), Keys(file)
    result: dict[str, Place] = {}
    # Layers after the last predict more than one token, which is not built.
    num_layers, num_extra = keys("block_count"), keys("nextn_predict_layers", 0)
    if type(num_extra) is not int or not 0 <= num_extra <= _MAX_EXTRA_LAYERS:
        raise ConfigError(f"{file.path}: nextn_predict_layers must be a number of at most {_MAX_EXTRA_LAYERS}")
    extra = tuple(f"blk.{num_layers - 1 - index}." for index in range(num_extra))
    for info in file.tensors.values():
        if info.name not in ROPE_FACTORS and not info.name.startswith(extra):
            result.update(_places_of(info, architecture, keys))
    return result


def _places_of(info: TensorInfo, architecture: Architecture, keys: Keys) -> list[tuple[str, Place]]:
    stem, _, ending = info.name.rpartition(".")
    if ending not in ("weight", "bias"):
        stem, ending = info.name, ""
    match = re.fullmatch(r"(?:blk\.(\d{1,5})\.)?(\w+(?:\.\w+)?)", stem)
    names = architecture.names
    if architecture.splits_qkv and match is not None and match[2] == "attn_qkv":
        return _thirds(info, f"{names['blk']}.{match[1]}", ending, names, keys)
    if match is not None and match[2] == "ffn_gate_up_exps" and match[2] not in names and len(info.shape) == 3:
        return _halves(info, f"{names['blk']}.{match[1]}", ending, names)
    if match is None or match[2] not in names:
        return [(info.name, Place(info))]
    layer, leaf = match.groups()
    ending = ending or ("weight" if leaf == "ffn_norm" else "")  # Falcon-H1's converter leaves it out
    name = f"{names[leaf]}.{ending}" if ending and not names[leaf].endswith(_BARE) else names[leaf]
    if layer is not None:
        name = f"{names['blk']}.{layer}.{name}"
    num_matrices = info.shape[0] if layer is None or leaf in _HEADS else keys("expert_count")
    if "{}" in name and info.shape[0] == num_matrices <= _MAX_EXPERTS:
        return [(name.format(expert), Place(info, expert=expert)) for expert in range(info.shape[0])]
    place = Place(
        info,
        num_rotated_heads=_num_heads(leaf, keys) if architecture.interleaves_heads else 0,
        adds_one=architecture.norms_add_one and leaf.endswith("norm") and leaf != "ssm_norm" and ending == "weight",
        is_transposed=leaf in architecture.transposed and ending == "weight",
        is_reshaped=leaf in RESHAPED,
        is_negated_exp=leaf == "ssm_a",
    )
    return [(name, place)]


def _thirds(info: TensorInfo, layer: str, ending: str, names: Mapping[str, str], keys: Keys) -> list[tuple[str, Place]]:
    """Return the places of q, k and v in one matrix or bias."""
    num_heads, num_kv_heads = keys("attention.head_count"), keys("attention.head_count_kv")
    width = info.shape[0] // (num_heads + 2 * num_kv_heads)
    ends = [0, num_heads * width, (num_heads + num_kv_heads) * width, info.shape[0]]
    parts = zip(("attn_q", "attn_k", "attn_v"), pairwise(ends), strict=True)
    return [(f"{layer}.{names[part]}.{ending}", Place(info, rows=rows)) for part, rows in parts]


def _halves(info: TensorInfo, layer: str, ending: str, names: Mapping[str, str]) -> list[tuple[str, Place]]:
    """Return the places of gates and ups of experts in one tensor, as the converter's --fuse-gate-up-exps writes it."""
    halves, width = 2 * min(info.shape[0], _MAX_EXPERTS), info.shape[1] // 2
    parts = ((divmod(half, 2), (half * width, (half + 1) * width)) for half in range(halves))
    leaves = ("ffn_gate_exps", "ffn_up_exps")
    return [
        (f"{layer}.{names[leaves[is_up]]}.{ending}".format(expert), Place(info, rows=rows))
        for (expert, is_up), rows in parts
    ]


def _num_heads(leaf: str, keys: Keys) -> int:
    num_heads: int = keys("attention.head_count")
    return {"attn_q": num_heads, "attn_k": keys.largest("attention.head_count_kv") or num_heads}.get(leaf, 0)
