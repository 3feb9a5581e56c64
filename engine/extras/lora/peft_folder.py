"""Folders of peft: adapter_config.json and adapter_model.safetensors (https://github.com/huggingface/peft).

Only what changes the answer is read. A field that would change it in a way that is not built is refused by name.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import ConfigError
from .matrices import Matrices, paired

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MAX_CONFIG_BYTES = 2**20
_PREFIX = "base_model.model."
_HALVES = {"lora_A.weight": "a", "lora_B.weight": "b"}
# Fields that change the product: values that are harmless, and the field's meaning.
_REFUSED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("use_dora", (None, False), "DoRA"),
    ("bias", (None, "none"), "biases"),
    ("lora_bias", (None, False), "biases"),
    ("modules_to_save", (None, []), "whole modules"),
    ("layer_replication", (None, []), "replicated layers"),
    ("trainable_token_indices", (None, [], {}), "new embeddings"),
    ("target_parameters", (None, []), "matrices of parameters"),
    ("alora_invocation_tokens", (None, []), "activation by tokens"),
    ("use_qalora", (None, False), "QALoRA"),
    ("arrow_config", (None,), "Arrow"),
    ("use_bdlora", (None, False), "block-diagonal matrices"),
)
# Ways to begin the training that change the model's own weights, too.
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def read_folder(folder: Path) -> Matrices:
    """Read an adapter. Raises ConfigError that names the fault in its files."""
    config = _config(folder)
    try:
        with (folder / _WEIGHTS).open("rb") as file:
            weights_digest = hashlib.file_digest(file, "sha256").hexdigest()
        halves = _halves(folder)
    except FileNotFoundError as exc:
        hint = "; convert adapter_model.bin" if (folder / "adapter_model.bin").exists() else ""
        raise ConfigError(f"{folder} has no {_WEIGHTS}{hint}") from exc
    except (OSError, SafetensorError, ValueError) as exc:
        raise ConfigError(f"{folder / _WEIGHTS} cannot be read ({exc}); fetch the adapter again") from exc
    scales = {name: _scale(folder, config, name, own) for name, own in halves.items()}
    digest = hashlib.sha256(json.dumps([config, weights_digest], sort_keys=True).encode())
    return Matrices(paired(folder, halves, scales), digest.hexdigest())


def _config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ValueError("it is too long")
        config = json.loads(path.read_text())
    except FileNotFoundError as exc:
        raise ConfigError(f"{folder} has no {_CONFIG}: an adapter is a folder of peft, or a .gguf file") from exc
    except (OSError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} cannot be read ({exc}); fetch the adapter again") from exc
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is not an object")
    if config.get("peft_type") != "LORA":
        raise ConfigError(f"{path}: peft_type {config.get('peft_type')!r} is not built; LORA is")
    for name, harmless, what in _REFUSED:
        if config.get(name) not in harmless:
            raise ConfigError(
                f"{path}: {what} ({name}) are not built for adapters; merge it: peft's merge_and_unload()"
            )
    begin = config.get("init_lora_weights")
    if isinstance(begin, str) and begin.lower().startswith(_CHANGED_BASE):
        raise ConfigError(f"{path}: init_lora_weights {begin!r} changes the model, too; convert the adapter to LoRA")
    return config


def _halves(folder: Path) -> dict[str, dict[str, Tensor]]:
    halves: dict[str, dict[str, Tensor]] = {}
    with safe_open(folder / _WEIGHTS, framework="pt") as file:
        for key in file.keys():  # noqa: SIM118  not a dict
            name, half = next(
                ((key.removesuffix(f".{e}"), h) for e, h in _HALVES.items() if key.endswith(e)), (key, "")
            )
            if not half:
                raise ConfigError(
                    f"{folder}: the adapter's {key!r} is no matrix of a linear, and nothing else is built"
                )
            halves.setdefault(name.removeprefix(_PREFIX), {})[half] = file.get_tensor(key)
    return halves


def _scale(folder: Path, config: Mapping[str, Any], name: str, own: Mapping[str, Tensor]) -> float:
    """Return alpha / r, or alpha / sqrt(r) (Kalajdzievski 2023, rsLoRA). The rank is the matrix's own."""
    rank = next(iter(own.values())).shape[0 if "a" in own else -1]
    alpha = _of_pattern(config.get("alpha_pattern"), name, config.get("lora_alpha", 8))
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ConfigError(f"{folder / _CONFIG}: lora_alpha must be a number, not {alpha!r}")
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)) if rank else 0.0


def _of_pattern(patterns: Any, name: str, default: Any) -> Any:
    """Return the value of the first pattern that the name ends with, as peft reads it."""
    for pattern, value in (patterns if isinstance(patterns, dict) else {}).items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", name):
                return value
        except re.error as exc:
            raise ConfigError(f"alpha_pattern {pattern!r} is no pattern ({exc})") from exc
    return default
