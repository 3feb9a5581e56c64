"""Architecture: the family that serves a value of general.architecture, and its converter's changes. Imports no torch.

source.py undoes the changes that llama.cpp's converter made to the weights (convert_hf_to_gguf.py of
https://github.com/ggml-org/llama.cpp). architectures.json has a row for each. Its "names" are tables of parts of
tensors' names: GGUF's -> the checkpoint's. Its "fields" are fields of config.json: the metadata's "keys", each alone or
with a default, "numbers" among them, "tensors" whose presence is the value, constant "values". A text in a list names a
table, or one of the functions NAME_fields.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from . import family_fields, gemma_fields
from .file import GgufFile
from .keys import Keys

_Parts = Sequence[str | dict[str, Any]]  # names of tables, and rows without a name

# Tensors that the config is read from.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
# Tensors whose shape differs from the checkpoint's by dimensions of size 1, or by groups of a vector.
RESHAPED = (
    *("exp_probs_b", "ssm_a", "ssm_d", "ssm_norm", "shortconv.conv", "ffn_gate_inp_shexp"),
    *("ssm_conv1d", "ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"),
)
_TABLE = json.loads(Path(__file__).with_name("architectures.json").read_text(encoding="utf-8"))
_FUNCTIONS: Mapping[str, Callable[[Keys], dict[str, Any]]] = {
    name.removesuffix("_fields"): function
    for module in (family_fields, gemma_fields)
    for name, function in vars(module).items()
    if name.endswith("_fields")
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Model architecture: one value of general.architecture."""

    family: str  # an entry of config.json's `architectures`
    names: Mapping[str, str]  # parts of tensors' names
    interleaves_heads: bool = False  # the converter interleaved the rows of q and k
    norms_add_one: bool = False
    transposed: Sequence[str] = ()
    splits_qkv: bool = False  # a file may have one matrix where the family has three
    parts: _Parts = ()  # of `fields`

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Architecture":
        """Read a row of the table."""
        own, names = dict(row), dict[str, str]()
        for part in _resolved("names", ["base", *own.pop("names", ())]):
            names |= part
        return cls(names=names, parts=_resolved("fields", own.pop("fields", ())), **own)

    def fields(self, keys: Keys) -> dict[str, Any]:
        """Return config.json's fields of this family alone. Raises ConfigError."""
        found: dict[str, Any] = {}
        for part in self.parts:
            found |= _FUNCTIONS[part](keys) if isinstance(part, str) else _read(part, keys)
        return found


def _resolved(table: str, parts: _Parts) -> list[Any]:
    """Replace the names of tables by their rows."""
    found: list[Any] = []
    for part in parts:
        rows = _TABLE[table].get(part) if isinstance(part, str) else None
        found += [part] if rows is None else _resolved(table, rows)
    return found


def _read(row: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """Return the fields of a row without a name."""
    asked = {name: [key] if isinstance(key, str) else key for name, key in row.get("keys", {}).items()}
    return {
        **{name: keys(*key) for name, key in asked.items()},
        **{name: keys.number(key) for name, key in row.get("numbers", {}).items()},
        **{name: tensor in keys.file.tensors for name, tensor in row.get("tensors", {}).items()},
        **row.get("values", {}),
    }


ARCHITECTURES = {name: Architecture.of(row) for name, row in _TABLE["architectures"].items()}
# Key of the metadata with which an architecture serves another family.
_VARIANTS = {name: (key, Architecture.of(row)) for name, (key, row) in _TABLE["variants"].items()}


# Files that are no models, by general.architecture or general.type.
_NO_MODELS = {
    "clip": "is the encoder of a model's images (mmproj), which are not served; give the model's own file beside it",
    "mmproj": "is the encoder of a model's images, which are not served; give the model's own file beside it",
    "adapter": "is an adapter (LoRA), not a model; serve its base model with --enable-lora --lora-modules NAME=FILE",
    "controlvector": "is a control vector, not a model; control vectors are not supported",
    "imatrix": "holds the importance of a model's weights, not the model; give the model's own file",
}


def architecture_of(file: GgufFile, *, lora: bool = False) -> Architecture:
    """Return the architecture of this file, or of an adapter's base model (`lora`). Raises ConfigError."""
    name = file.metadata.get("general.architecture")
    if (what := _NO_MODELS.get(str(name)) or _NO_MODELS.get(str(file.metadata.get("general.type")))) and not lora:
        raise ConfigError(f"{file.path} {what}")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ConfigError(
            f"{file.path}: GGUF architecture {name!r} is not known; `splitfuse models --supported` lists the "
            f"{len(ARCHITECTURES)} that are"
        )
    key, variant = _VARIANTS.get(name, ("", None))
    return variant if variant and file.metadata.get(f"{name}.{key}") else ARCHITECTURES[name]


def names_of_families() -> dict[str, list[str]]:
    """Return the values of general.architecture that each family serves."""
    names: dict[str, list[str]] = {}
    for name, architecture in ARCHITECTURES.items():
        names.setdefault(architecture.family, []).append(name)
    for name, (key, architecture) in _VARIANTS.items():
        names.setdefault(architecture.family, []).append(f"{name} with {key}")
    return names
