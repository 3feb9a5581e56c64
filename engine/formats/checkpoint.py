"""Model folders and GGUF files: finding them, and reading their JSON files and numbers. Imports no torch."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import EngineConfig
from ..config.named_models import named_model
from ..errors import ConfigError

JOIN = "join its parts: llama-gguf-split --merge FIRST-PART WHOLE.gguf"
HUB_FILES, WEIGHT_FILES = ("*.json", "*.jinja", "tokenizer.model"), "*.safetensors"  # fetched from the hub
_HUB_ID = re.compile(r"[^/.~:][^/:]*/[^/:]+(:[^:]+\.gguf)?")
_SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


def local_model(model: str | None) -> Path | None:
    """Return a model's folder or GGUF file; None for a hub id. Raises ConfigError if it is missing or no model."""
    if (named := named_model(model)) is not None:
        return named
    assert model is not None
    path = Path(model).expanduser()
    if path.is_dir():
        return _model_in(path)
    if path.is_file():
        if not is_gguf(path):
            raise ConfigError(f"{path} is a file, and no GGUF file; give a .gguf file, or the folder of a model")
        return path
    from ..config.short_names import hub_name

    if not _HUB_ID.fullmatch(hub_name(model)) or (path.suffix == ".gguf" and ":" not in hub_name(model)):
        from .missing_model import missing_model

        raise ConfigError(missing_model(model))
    return None


def is_gguf(path: Path) -> bool:
    """True if a file begins with GGUF's magic bytes or is named .gguf."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF" or path.suffix == ".gguf"
    except OSError:
        return path.suffix == ".gguf"


def model_folder(config: EngineConfig, model: str | None) -> Path:
    """Return a model's folder or GGUF file; download it from the hub if it is not local. Raises ConfigError."""
    local = local_model(model)
    if local is not None:
        return local
    from ..config.short_names import hub_name

    hub_id, _, file = hub_name(str(model)).partition(":")
    revision = config.revision if model == config.model else None
    return _download(hub_id, file, revision=revision, with_weights=config.load_format != "dummy")


def _model_in(folder: Path) -> Path:
    """Return the folder, or its only GGUF file if it has no safetensors. Raises ConfigError for several GGUF files."""
    ggufs = [path for path in sorted(folder.glob("*.gguf")) if path.is_file()]
    if ggufs and not any(folder.glob("*.safetensors")):
        if len(ggufs) == 1:
            return ggufs[0]
        if _SPLIT.search(ggufs[0].name):
            raise ConfigError(f"{ggufs[0]} is one part of a split GGUF; {JOIN}")
        raise ConfigError(f"{folder} holds several GGUF files, so name one: {', '.join(path.name for path in ggufs)}")
    return folder


def _download(hub_id: str, file: str, *, revision: str | None, with_weights: bool) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    patterns = [*HUB_FILES, *([WEIGHT_FILES] if with_weights else [])]
    try:
        if file:
            return Path(hf_hub_download(hub_id, file, revision=revision))
        folder = Path(snapshot_download(hub_id, revision=revision, allow_patterns=patterns))
    except Exception as exc:  # the hub's client raises many types, and all mean "not available"
        first_line = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        from .missing_model import unavailable_hint

        name, hint = f"{hub_id}:{file}" if file else hub_id, unavailable_hint(exc, name=hub_id)
        raise ConfigError(
            f"model {name!r} is no local folder and the hub does not give it: {first_line}{hint}"
        ) from exc
    if not (folder / "config.json").exists():
        raise ConfigError(f"{hub_id} has no config.json; for one of its GGUF files name it: {hub_id}:FILE.gguf")
    return folder


def version_of(path: Path) -> tuple[int, ...]:
    """Return a key that changes when a file is overwritten or replaced; () if the file is gone."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def other_format(folder: Path) -> str | None:
    """Say which known content a folder has instead of a model's safetensors, and what to do; None if unknown."""
    if (folder / "adapter_config.json").exists():
        base = read_json(folder / "adapter_config.json").get("base_model_name_or_path") or "its base model"
        return (
            f"{folder} is an adapter (LoRA or alike) for {base}, not a model; serve {base} with "
            f"--enable-lora --lora-modules NAME={folder}"
        )
    return None


def tokenizer_only(folder: Path) -> str | None:
    """Like other_format, of a folder without config.json: say so if it holds a tokenizer."""
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
    if found := next((name for name in names if (folder / name).exists()), None):
        return f"{folder} holds a tokenizer ({found}) and no model: config.json is missing; give the model's folder"
    return None


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of the model folder. Raises ConfigError that names the file."""
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
    """Return the positive integer under `name`; `default` if it is missing or null. Raises ConfigError."""
    value = fields.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} must be a positive integer, not {value!r}")
    return value


def positive_number(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Return the finite number above 0 under `name`; `default` if it is missing or null. Raises ConfigError."""
    value: Any = fields.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a number above 0, not {value!r}")
    return float(value)
