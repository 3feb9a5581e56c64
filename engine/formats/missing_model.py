"""Words about a model that is not there: the nearest name, the files beside it, the way without a network."""

import difflib
from collections.abc import Iterator
from pathlib import Path

from ..config.named_models import NAMES
from ..config.short_names import SHORT_NAMES
from .json_file import read_json

_MAX_LISTED = 5
_HUB = "a hub id like owner/name, owner/name:Q4_K_M or owner/name:FILE.gguf"
_NO_NETWORK = (
    "without a network give a folder or a .gguf file, set HF_HUB_OFFLINE=1 to use downloaded models, or set "
    "HF_ENDPOINT to a mirror"
)


def missing_model(model: str) -> str:
    """Return an error message for a model that is no file, no folder and no hub id."""
    path = Path(model).expanduser()
    is_file = path.suffix.lower() == ".gguf"
    near = _nearest(path) if is_file else _nearest_name(model) or _nearest(path)
    text = f"{'file' if is_file else 'model folder'} {model!r} does not exist"
    if sizes := sorted(name for name in SHORT_NAMES if name.startswith(f"{model.lower()}:")):
        return f"{model} has several sizes, so name one: {', '.join(sizes)}"
    if near is not None:
        return f"{text}; did you mean {near}?"
    if is_file and not path.parent.is_dir():
        return f"{text}, nor does its folder {path.parent}"
    ggufs = [file.name for file in _models_beside(path) if file.suffix.lower() == ".gguf"]
    if is_file and ggufs:
        shown = ", ".join(ggufs[:_MAX_LISTED]) + ", …" * (len(ggufs) > _MAX_LISTED)
        return f"{text}; its folder has {shown}"
    return f"{text}; give a folder, a .gguf file, or {_HUB}"


def unavailable_hint(exc: Exception, *, name: str) -> str:
    """Return what to do where the hub's client raised this; empty if its own message has to do."""
    if (near := _nearest(Path(name))) is not None:
        return f"; did you mean {near}?"
    names = {kind.__name__ for kind in type(exc).__mro__}
    if names & {"RepositoryNotFoundError", "GatedRepoError", "RevisionNotFoundError", "EntryNotFoundError"} and not (
        names & {"LocalEntryNotFoundError"}
    ):
        return "; check the name, or set HF_TOKEN if the model is private or gated"
    is_away = names & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "TransportError", "ConnectionError"}
    return f"; {_NO_NETWORK}" if is_away or isinstance(exc, OSError) else ""


def _nearest_name(model: str) -> str | None:
    found = difflib.get_close_matches(model.lower(), NAMES, n=1, cutoff=0.7)
    return found[0] if found else None


def _nearest(path: Path) -> str | None:
    """Find the model beside a path whose name is most like the path's."""
    files = {file.name.lower(): file for file in _models_beside(path)}
    found = difflib.get_close_matches(path.name.lower(), files, n=1, cutoff=0.7)
    return str(files[found[0]]) if found else None


def _models_beside(path: Path) -> Iterator[Path]:
    """Yield the GGUF files and model folders in the same folder."""
    try:
        found = sorted(path.parent.iterdir())
    except OSError:
        return
    yield from (file for file in found if file.suffix.lower() == ".gguf" or (file / "config.json").exists())


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
