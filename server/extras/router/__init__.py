"""Several models behind one port, a server process each, loaded on demand and in turn: `serve A B C`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....engine.config.setting import setting
from ....engine.errors import ConfigError
from ...extension import Extension
from ...server_settings import ServerSettings

# Settings of one server that several cannot share, and the way out.
_REFUSED = {
    "replicas": "start one server for each model that needs replicas",
    "embedding_model": "name it as one of the models",
    "served_model_name": "each model has the name of its file; --model-settings gives another",
    "record": "record one model alone",
    "results_url": "it is one server's",
}


@dataclass(frozen=True, kw_only=True)
class RouterSettings(ServerSettings):
    """Models behind one port, and how long each stays loaded."""

    models: tuple[str, ...] = setting(
        (), help="models behind one port, as `serve A B`; requests name theirs, without a name the first answers"
    )
    models_dir: str | None = setting(None, help="folder whose models are served: .gguf files, and folders of models")
    models_max: int = setting(1, at_least=1, help="most models in memory at once; others are loaded in turn")
    idle_unload: float | None = setting(
        None, at_least=0, help="seconds without work after which a model leaves memory; nothing = when another needs it"
    )
    model_turn: float = setting(
        5.0, at_least=0, help="seconds that a model takes new requests while another one waits for its place"
    )
    model_settings: dict[str, Any] | None = setting(
        None, help='settings of single models by name, as JSON: {"A": {"max_model_len": 4096, "pin": true}}'
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.has_several_models:
            return
        for name, way_out in _REFUSED.items():
            if getattr(self, name, None) not in (None, "", ()):
                raise ConfigError(f"--{name.replace('_', '-')} does not work with several models: {way_out}")
        if self.has_shared_results:
            raise ConfigError("--results postgresql://… is shared by servers of one model; give a folder for several")
        for name, values in (self.model_settings or {}).items():
            if not isinstance(values, Mapping):
                raise ConfigError(f"model_settings: {name} needs an object of settings, not {values!r}")

    @property
    def has_several_models(self) -> bool:
        """True if a router runs `serve`, also where it has one model that comes and goes."""
        own = () if self.model is None else (self.model,)
        return self.models not in ((), own) or self.models_dir is not None or self.idle_unload is not None

    def results_file(self, name: str) -> Path | None:
        """Return a model's file where --results names a file or a folder; None: results live as long as the router."""
        results = getattr(self, "results", "memory")
        if results == "memory":
            return None
        path = Path(results).expanduser()
        if path.is_dir() or not path.suffix:
            return path / f"{name}.db"
        return path.with_name(f"{path.stem}.{name}{path.suffix}")


EXTENSION = Extension(
    package=__name__,
    requires=("server/extras/replicas", "server/results/durable"),
    settings=RouterSettings,
    is_used=lambda settings: settings.has_several_models,
    serve="supervisor:serve_models",
)
