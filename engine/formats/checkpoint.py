"""Model folders and GGUF files: where they are, and which version. Imports no torch."""

import re
from pathlib import Path
from typing import Any

from ..config import EngineConfig
from ..config.named_models import named_model
from ..errors import ConfigError
from .gguf_files import gguf_files, hub_fault, parts_of, whole_models

HUB_FILES, WEIGHT_FILES = ("*.json", "*.jinja", "tokenizer.model"), "*.safetensors"  # fetched from the hub
_HUB_ID = re.compile(r"[^/.~:][^/:]*/[^/:]+(:[^:]+)?")


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
        return parts_of(path)[0]
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


def tokenizer_source(config: EngineConfig, model: Path) -> Path:
    """Return the folder or GGUF file of --tokenizer; by default the model's own. Raises ConfigError."""
    if config.tokenizer in (None, config.model):
        return model
    local = local_model(config.tokenizer)
    return _download(str(config.tokenizer), "", revision=None, with_weights=False) if local is None else local


def _model_in(folder: Path) -> Path:
    """Return the folder, or its only GGUF file if it has no safetensors. Raises ConfigError for several GGUF files."""
    names = whole_models(path.name for path in sorted(folder.glob("*.gguf")) if path.is_file())
    if names and not any(folder.glob("*.safetensors")):
        if len(names) == 1:
            return parts_of(folder / names[0])[0]
        raise ConfigError(f"{folder} holds several GGUF files, so name one: {', '.join(names)}")
    return folder


def _download(hub_id: str, file: str, *, revision: str | None, with_weights: bool) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    fault = hub_fault()
    options: dict[str, Any] = {"revision": revision, "local_files_only": fault is not None}
    patterns = [*HUB_FILES, *([WEIGHT_FILES] if with_weights else [])]
    try:
        files = gguf_files(hub_id, file, revision=revision) if file or with_weights else []
        paths = [Path(hf_hub_download(hub_id, name, **options)) for name in files]
        if paths:
            return paths[0]
        folder = Path(snapshot_download(hub_id, **options, allow_patterns=patterns))
    except ConfigError:
        raise
    except Exception as exc:  # the hub's client raises many types, and all mean "not available"
        first_line = fault or (str(exc).strip().splitlines() or [type(exc).__name__])[0]
        from .missing_model import unavailable_hint

        name, hint = f"{hub_id}:{file}" if file else hub_id, unavailable_hint(exc, name=hub_id)
        raise ConfigError(
            f"model {name!r} is no local folder and the hub does not give it: {first_line}{hint}"
        ) from exc
    if not (folder / "config.json").exists():
        raise ConfigError(f"{hub_id} has neither config.json nor GGUF files; is it a model?")
    return folder


def version_of(path: Path) -> tuple[int, ...]:
    """Return a key that changes when a file is overwritten or replaced; () if the file is gone."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
