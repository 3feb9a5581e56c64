"""A model's folder: where it is, its JSON files, and the numbers in them. Imports no torch."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import DEMO_DRAFT, DEMO_FOLDER, EngineConfig
from ..errors import ConfigError


def local_folder(model: str | None) -> Path | None:
    """The folder of a model: the demo's for None; None for one of the hub. Raises ConfigError if there is neither."""
    if model is None or model == DEMO_DRAFT:
        return DEMO_FOLDER if model is None else DEMO_FOLDER / "draft"
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.count("/") != 1 or model.startswith((".", "/", "~")):  # no id of the hub either
        raise ConfigError(f"model folder {model!r} does not exist; give a folder or a hub id like owner/name")
    return None


def model_folder(config: EngineConfig, model: str | None) -> Path:
    """The folder of a model, fetched from the hub if it is not local. Raises ConfigError."""
    return local_folder(model) or _download(str(model), with_weights=config.load_format != "dummy")


def _download(hub_id: str, *, with_weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.jinja", "tokenizer.model"] + (["*.safetensors"] if with_weights else [])
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except Exception as exc:  # the hub's client raises many kinds, all of which mean: not available
        first_line = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        raise ConfigError(f"model {hub_id!r} is no local folder and the hub does not give it: {first_line}") from exc


def other_format(folder: Path) -> str | None:
    """What a folder without safetensors of a model holds instead, and what to do; None if it is nothing known."""
    if (folder / "adapter_config.json").exists():
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path") or "its base model"
        return (
            f"{folder} is an adapter (LoRA or alike) for {base}, not a model, and adapters are not served yet; serve "
            f"{base}, or merge the two first: peft's merge_and_unload(), then save_pretrained()"
        )
    if gguf := sorted(path.name for path in folder.glob("*.gguf")):
        return f"{folder} holds GGUF ({gguf[0]}) and no safetensors; give the folder that the GGUF was made from"
    return None


def tokenizer_only(folder: Path) -> str | None:
    """The same of a folder without config.json that holds a tokenizer."""
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
    if found := next((name for name in names if (folder / name).exists()), None):
        return f"{folder} holds a tokenizer ({found}) and no model; give the folder of the model"
    return None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of the model folder. Raises ConfigError naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ConfigError(f"{path} is missing; is this a Hugging Face model folder?") from exc
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} cannot be read as JSON ({exc}); fetch the file again") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object; fetch the file again")
    return value


def positive_int(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """The positive integer under `name`; where it is missing or null, `default`. Raises ConfigError."""
    value = fields.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} must be a positive integer, not {value!r}")
    return value


def positive_number(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """The finite number above 0 under `name`; where it is missing or null, `default`. Raises ConfigError."""
    value: Any = fields.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number above 0, not {value!r}")
    return float(value)
