"""Folders of peft: adapter_config.json and adapter_model.safetensors (https://github.com/huggingface/peft).

Reads only fields that change the answer. A field whose effect is not built is refused by name.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import ConfigError
from ...formats.linear_pattern import linear_pattern
from .matrices import Matrices, paired

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MAX_CONFIG_BYTES = 2**20
_MAX_PATTERN_CHARS = 256  # compiling this many times \w takes 26 ms
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
    alpha_of = _alphas(folder, config)
    try:
        if (folder / _WEIGHTS).exists() and not (folder / _WEIGHTS).is_file():
            raise ValueError("it is no file")  # a pipe would be waited for
        with (folder / _WEIGHTS).open("rb") as file:
            weights_digest = hashlib.file_digest(file, "sha256").hexdigest()
        halves = _halves(folder)
    except FileNotFoundError as exc:
        hint = "; convert adapter_model.bin" if (folder / "adapter_model.bin").exists() else ""
        raise ConfigError(f"{folder} has no {_WEIGHTS}{hint}") from exc
    except (OSError, SafetensorError, ValueError) as exc:
        raise ConfigError(f"{folder / _WEIGHTS} cannot be read ({exc}); fetch the adapter again") from exc
    scales = {name: _scale(own, alpha_of(name), is_rs=bool(config.get("use_rslora"))) for name, own in halves.items()}
    digest = hashlib.sha256(json.dumps([config, weights_digest], sort_keys=True).encode())
    return Matrices(paired(folder, halves, scales), digest.hexdigest())


def _config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    try:
        if not path.stat().st_size < _MAX_CONFIG_BYTES or not path.is_file():
            raise ValueError("it is too long, or no file")
        config = json.loads(path.read_text("utf-8"))
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


def _alphas(folder: Path, config: Mapping[str, Any]) -> Callable[[str], float]:
    """Return lora_alpha by a linear's name: that of the first pattern with which the name ends, as peft reads it."""
    alpha, by_pattern = _number(folder, config.get("lora_alpha", 8)), config.get("alpha_pattern")
    patterns = []
    for pattern, value in (by_pattern if isinstance(by_pattern, dict) else {}).items():
        try:
            if len(pattern) > _MAX_PATTERN_CHARS or "{" in pattern:
                raise ValueError(f"{_MAX_PATTERN_CHARS} characters at most, without counts in braces")
            patterns.append((linear_pattern(rf"^(?:.*\.)?(?:{pattern})$"), _number(folder, value)))
        except ValueError as exc:
            raise ConfigError(f"{folder / _CONFIG}: alpha_pattern {pattern!r:.100} cannot be used: {exc}") from exc
    return lambda name: next((value for matches, value in patterns if matches(name)), alpha)


def _number(folder: Path, alpha: object) -> float:
    try:
        if not isinstance(alpha, bool) and isinstance(alpha, int | float) and math.isfinite(alpha):
            return float(alpha)
    except OverflowError:  # an integer of more than 308 digits
        pass
    raise ConfigError(f"{folder / _CONFIG}: lora_alpha must be a number, not {alpha!r:.100}")


def _scale(own: Mapping[str, Tensor], alpha: float, *, is_rs: bool) -> float:
    """Return alpha / r, or alpha / sqrt(r) (Kalajdzievski 2023, rsLoRA). The rank is the matrix's own."""
    matrix = next(iter(own.values()))
    rank = matrix.shape[0 if "a" in own else -1] if matrix.ndim else 0
    return alpha / (math.sqrt(rank) if is_rs else rank) if rank else 0.0
