"""StoredModel: a model on disk: the bundled ones, and files in the Hugging Face cache. Imports no torch."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....engine.config.named_models import DEMO, SMOLLM2, named_model
from ....engine.config.short_names import SHORT_NAMES, hub_name
from ....engine.errors import ConfigError
from ....engine.execution.models.registry import MODELS
from ....engine.formats.description import describe
from ....engine.formats.gguf.config_fields import read_config_fields
from ....engine.formats.gguf_files import parts_of, whole_models
from ....engine.formats.json_file import read_json

_FORMATS = {"gguf": "GGUF", "safetensors": "safetensors"}
_UNKNOWN = "not served"  # family of a model that no family of ours serves


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """Model on disk. `name` is its MODEL for other commands."""

    name: str
    path: Path
    num_bytes: int
    family: str
    format: str
    hub_id: str = ""  # empty for models that are no hub's
    files: tuple[Path, ...] = field(default=(), repr=False)  # files that go with the model

    @property
    def is_served(self) -> bool:
        """True if a family of ours serves the model."""
        return self.family != _UNKNOWN


def stored_models() -> list[StoredModel]:
    """Find the models on disk; the bundled ones first."""
    return [*_bundled(), *_cached()]


def is_cached(model: str) -> bool:
    """True if a hub's file, `OWNER/NAME:FILE`, a quantization's or a short name's, is in the cache."""
    from huggingface_hub import try_to_load_from_cache

    hub_id, _, file = hub_name(model).partition(":")
    if not file.endswith(".gguf"):
        return any(stored.hub_id.startswith(f"{hub_id}:") for stored in _cached())
    return isinstance(try_to_load_from_cache(hub_id, file), str)


def _bundled() -> Iterator[StoredModel]:
    for name in (SMOLLM2, DEMO):
        try:
            path = named_model(name)
        except ConfigError:  # not installed
            continue
        assert path is not None
        family, form = _kind(path)
        yield StoredModel(name=name, path=path, num_bytes=_size(_weights(path)), family=family, format=form)


def _cached() -> Iterator[StoredModel]:
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return
    for repo in sorted(repos, key=lambda repo: str(repo.repo_id).lower()):
        if repo.repo_type == "model" and repo.revisions:
            newest = max(repo.revisions, key=lambda revision: ("main" in revision.refs, revision.last_modified))
            yield from _in_snapshot(str(repo.repo_id), Path(newest.snapshot_path))


def _in_snapshot(hub_id: str, folder: Path) -> Iterator[StoredModel]:
    """Yield the folder as a model if it has safetensors, and each GGUF file."""
    if any(folder.glob("*.safetensors")) and (folder / "config.json").exists():
        files = tuple(sorted(path for path in folder.rglob("*") if path.is_file()))
        yield _hub_model(hub_id, folder, files)
    for name in whole_models(str(path.relative_to(folder)) for path in sorted(folder.rglob("*.gguf"))):
        with contextlib.suppress(ConfigError):  # some parts are not here
            yield _hub_model(f"{hub_id}:{name}", folder / name, tuple(parts_of(folder / name)))


def _hub_model(hub_id: str, path: Path, files: tuple[Path, ...]) -> StoredModel:
    short = next((name for name, model in SHORT_NAMES.items() if model.hub_id == hub_id), hub_id)
    family, form = _kind(path)
    num_bytes = _size(_weights(path))
    return StoredModel(
        name=short, path=path, num_bytes=num_bytes, family=family, format=form, hub_id=hub_id, files=files
    )


def _weights(path: Path) -> list[Path]:
    return parts_of(path) if path.is_file() else sorted(path.glob("*.safetensors"))


def _size(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _kind(path: Path) -> tuple[str, str]:
    """Return the family's name and the format, from the headers alone."""
    try:
        fields = read_config_fields(path) if path.is_file() else read_json(path / "config.json")
        description = describe(path)
        return _family(fields), f"{_FORMATS[description.format]} {description.types}".strip()
    except ConfigError:
        return _UNKNOWN, "GGUF" if path.is_file() else "safetensors"


def _family(fields: dict[str, Any]) -> str:
    architecture = (fields.get("architectures") or [""])[0]
    return MODELS[architecture].name if architecture in MODELS else _UNKNOWN
