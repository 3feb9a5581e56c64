"""Catalog: the models by name, and what each one's server gets as settings. Knows no process."""

import dataclasses
import difflib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ....engine.config.host import may_have_gpu
from ....engine.errors import ConfigError, ModelNotFoundError
from ....engine.formats.checkpoint import local_model
from ....engine.formats.gguf_files import parts_of, whole_models
from ...server_settings import ServerSettings
from ..replicas.replica_settings import config_of
from . import RouterSettings

_FREE_SHARE = 2  # of the free space, the part that blocks of models that left may take
_TAG = re.compile(r"m[0-9a-f]{8}-")
# Places of an id in a request's path and fields; the id follows a kind such as resp_ or file-.
_ID = r"(?:[a-z]+[_-])?"
# Settings that are the router's alone, as its servers have them.
_ROUTERS: Mapping[str, Any] = {
    **dict.fromkeys(("models_dir", "idle_unload", "model_settings", "uds", "ssl_certfile", "ssl_keyfile")),
    "models": (),
    "allowed_origins": (),
    "port": 0,
}


@dataclasses.dataclass(eq=False, kw_only=True)
class Entry:
    """One model: the settings of its server, and the beginning of its ids."""

    settings: ServerSettings
    tag: str
    is_pinned: bool
    listed: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # last answers to /v1/models and /api/tags

    @property
    def name(self) -> str:
        """Name under which the model is served."""
        return self.settings.model_name

    @property
    def results(self) -> Path:
        """File of its results."""
        return Path(getattr(self.settings, "results"))  # noqa: B009 - the durable extra's field

    @property
    def num_bytes(self) -> int:
        """Size of its files; 0 if they are not here."""
        path = local_model(self.settings.model)
        files = [] if path is None else parts_of(path) if path.is_file() else path.glob("*.safetensors")
        return sum(file.stat().st_size for file in files)

    def config(self) -> str:
        """Return the text of its server's config file."""
        threads = self.settings.num_threads
        return config_of(self.settings, tag=self.settings.id_tag, num_threads=threads)  # type: ignore[arg-type]

    def serves(self, name: str) -> bool:
        """True if requests may call it so; its adapters too, once it has been loaded."""
        entries = self.listed.get("openai", ())
        return self.settings.serves(name) or any(entry["id"] == name for entry in entries)


class Catalog:
    """The models, the default one first."""

    def __init__(self, settings: RouterSettings, folder: Path) -> None:
        """`folder` holds sockets, and results that end with this process. Raises ConfigError."""
        self.entries: dict[str, Entry] = {}
        by_tag: dict[str, Entry] = {}
        of_models = dict(settings.model_settings or {})
        models = dict.fromkeys(_models(settings))
        for model in models:
            entry = _entry(settings, model, folder, of_models, num_models=len(models))
            if (known := self.entries.get(entry.name) or by_tag.get(entry.tag)) is not None:
                raise ConfigError(
                    f"{known.settings.model} and {model} would both be served as {entry.name}; give one another name "
                    'by --model-settings \'{"MODEL": {"served_model_name": "…"}}\''
                )
            self.entries[entry.name] = by_tag[entry.tag] = entry
        if of_models:
            raise ConfigError(f"model_settings: {next(iter(of_models))!r} is none of {', '.join(self.entries)}")
        num_pinned = sum(entry.is_pinned for entry in self.entries.values())
        if num_pinned >= settings.models_max and num_pinned < len(self.entries):
            raise ConfigError(
                f"{num_pinned} pinned models take all places of --models-max {settings.models_max}, and the others "
                f"would wait for ever; raise it to {num_pinned + 1}"
            )
        self._by_tag = by_tag
        self._id = re.compile(f"{_ID}{re.escape(settings.id_tag)}({_TAG.pattern})")
        self._in_path = re.compile(f"/{self._id.pattern}")

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    @property
    def default(self) -> Entry:
        """Model of requests without a name."""
        return next(iter(self))

    def named(self, name: str) -> Entry:
        """Return the model of this name. Raises ModelNotFoundError with the nearest one."""
        found = self.entries.get(name) or next((entry for entry in self if entry.serves(name)), None)
        if found is None:
            near = difflib.get_close_matches(name[:100].lower(), [key.lower() for key in self.entries], n=1, cutoff=0.5)
            known = [key for key in self.entries if key.lower() in near]
            raise ModelNotFoundError(
                f"model {name[:100]!r} is not served here; served: {', '.join(self.entries)}"
                + "".join(f"; did you mean {key!r}?" for key in known[:1])
            )
        return found

    def owner_in_path(self, path: str) -> Entry | None:
        """Return the model that gave the id in a path."""
        found = self._in_path.search(path)
        return None if found is None else self._by_tag.get(found[1])

    def owner_of(self, text: object) -> Entry | None:
        """Return the model that gave an id."""
        found = self._id.match(text) if isinstance(text, str) else None
        return None if found is None else self._by_tag.get(found[1])


def _models(settings: RouterSettings) -> Iterator[str]:
    """Yield the models to serve: those that are named, then those of the folder."""
    if settings.models or settings.models_dir is None:
        yield from settings.models or (str(settings.model),)
    if settings.models_dir is None:
        return
    folder = Path(settings.models_dir).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"--models-dir {folder}: no such folder")
    found = [model for place in (folder, *sorted(filter(Path.is_dir, folder.iterdir()))) for model in _in(place)]
    if not found and not settings.models:
        raise ConfigError(f"--models-dir {folder} holds no .gguf file, and no folder of a model")
    yield from map(str, found)


def _in(folder: Path) -> list[Path]:
    """Return the folder if it is a model's, else its GGUF models."""
    if (folder / "config.json").exists():
        return [folder]
    names = sorted(path.name for path in folder.iterdir() if path.suffix.lower() == ".gguf")
    return [folder / name for name in whole_models(names)]


def _can_leave_blocks(settings: Any) -> bool:
    """True if the prefix cache on disk is built for these settings (`engine/extras/disk_cache/disk_cache.py`)."""
    is_cpu = settings.device == "cpu" or (settings.device == "auto" and not may_have_gpu())
    is_alone = settings.tensor_parallel_size == 1 and settings.tensor_parallel_slices is None
    is_wanted = settings.enable_prefix_caching and hasattr(settings, "prefix_cache_dir")
    return is_cpu and is_alone and is_wanted and not settings.async_scheduling and os.name != "nt"


def _entry(settings: RouterSettings, model: str, folder: Path, of_models: dict[str, Any], *, num_models: int) -> Entry:
    """Make a model's entry; its settings are taken out of `of_models`. Raises ConfigError."""
    plain: Any = dataclasses.replace(settings, model=model, **_ROUTERS)
    local_model(model)  # a missing model is named at the start
    own = dict(of_models.pop(plain.model_name, None) or of_models.pop(model, None) or {})
    is_pinned = bool(own.pop("pin", False))
    try:
        named: Any = dataclasses.replace(plain, **own)
    except TypeError as exc:
        fault = str(exc).rpartition("argument ")[2]
        raise ConfigError(f"model_settings: {plain.model_name}: {fault} is no setting of a server") from exc
    tag = f"m{hashlib.sha256(named.model_name.encode()).hexdigest()[:8]}-"
    name = re.sub(r"[^\w.-]+", "-", named.model_name)[-40:] + f"-{tag[1:-1]}"
    results = settings.results_file(name)
    changes: dict[str, Any] = {
        "uds": str(folder / f"{tag}socket"),
        "id_tag": f"{settings.id_tag}{tag}",
        "results": str(results or folder / f"{name}.db"),
        **({} if results else {"results_sync": "normal"}),
    }
    if getattr(named, "prefix_cache_dir", None) is not None:
        changes["prefix_cache_dir"] = str(Path(named.prefix_cache_dir) / name)
    elif _can_leave_blocks(named):
        changes["prefix_cache_dir"] = str(folder / f"{name}.cache")
        most = shutil.disk_usage(folder).free // _FREE_SHARE
        changes["prefix_cache_disk_bytes"] = max(1, min(named.prefix_cache_disk_bytes, most) // num_models)
    return Entry(settings=dataclasses.replace(named, **changes), tag=tag, is_pinned=is_pinned)
