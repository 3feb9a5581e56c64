"""ModelFiles: the files in which sentence-transformers keeps how a model's states become embeddings.

modules.json lists the parts (Transformer, Pooling, Dense, Normalize), each with a folder of its own;
config_sentence_transformers.json has the prompts, sentence_bert_config.json the longest input.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open

from ...errors import ConfigError
from ...formats.json_file import read_json
from .heads import Dense, Head

_POOLING_TYPES = {"cls": "CLS", "lasttoken": "LAST", "mean": "MEAN"}
_FLAGS = {"pooling_mode_cls_token": "CLS", "pooling_mode_mean_tokens": "MEAN", "pooling_mode_lasttoken": "LAST"}
_PASSED = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class ModelFiles:
    """What a model's folder says about pooling; None and empty where it says nothing."""

    pooling_type: str | None = None
    normalize: bool | None = None
    dense: tuple[Head, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)  # by name; "query" and "document" are usual
    default_prompt: str = ""
    max_seq_length: int | None = None
    lowercase: bool = False


def read_model_files(folder: Path) -> ModelFiles:
    """Read the files that are there. Raises ConfigError."""
    try:
        return _read(folder)
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as exc:
        raise ConfigError(
            f"{folder}: the files of sentence-transformers cannot be read ({exc}); fetch them again"
        ) from exc


def _read(folder: Path) -> ModelFiles:
    listed = folder / "modules.json"
    modules = json.loads(listed.read_text(encoding="utf-8")) if listed.exists() else []
    parts = [(str(module["type"]).rpartition(".")[2], folder / str(module.get("path") or "")) for module in modules]
    for kind, _ in parts:
        if kind not in (*_PASSED, "Dense"):
            raise ConfigError(f"modules.json: {kind} is not known; known: {', '.join(_PASSED)}, Dense")
    pooling = next((path for kind, path in parts if kind == "Pooling"), None)
    described = _optional(folder / "config_sentence_transformers.json")
    prompts = {str(name): str(text) for name, text in (described.get("prompts") or {}).items()}
    limits = _optional(folder / "sentence_bert_config.json")
    return ModelFiles(
        pooling_type=None if pooling is None else _pooling_type(pooling / "config.json"),
        normalize=any(kind == "Normalize" for kind, _ in parts) if modules else None,
        dense=tuple(_dense(path) for kind, path in parts if kind == "Dense"),
        prompts=prompts,
        default_prompt=prompts.get(described.get("default_prompt_name") or "", ""),
        max_seq_length=limits.get("max_seq_length"),
        lowercase=bool(limits.get("do_lower_case", False)),
    )


def _optional(path: Path) -> Mapping[str, Any]:
    return read_json(path) if path.exists() else {}


def _pooling_type(path: Path) -> str:
    fields = read_json(path)
    named = [_POOLING_TYPES.get(str(fields["pooling_mode"]))] if "pooling_mode" in fields else []
    flagged = [_FLAGS.get(name) for name, value in fields.items() if name.startswith("pooling_mode_") and value is True]
    found = named or flagged
    if len(found) != 1 or found[0] is None:
        raise ConfigError(f"{path}: the pooling must be one of {', '.join(_POOLING_TYPES)}")
    return found[0]


def _dense(folder: Path) -> Head:
    fields = read_json(folder / "config.json")
    path = folder / "model.safetensors"
    if not path.exists():
        raise ConfigError(f"{folder} has no model.safetensors; convert its .bin file first")
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        weight = file.get_tensor("linear.weight")
        bias = file.get_tensor("linear.bias") if "linear.bias" in names else None
    return Dense(weight, bias, activation=str(fields.get("activation_function", "Identity")))
