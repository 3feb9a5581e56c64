"""Sources of settings: command line over environment over config file over default.

Turns text into values. Never knows what a setting means.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...engine.config import EngineConfig
from ...engine.config.setting import ENV_PREFIX, KIND_NAMES, Setting, settings_of
from ...engine.errors import ConfigError
from ..settings import Settings

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
SIZE_KIND = "a size: bytes, or a number and KB, MB, GB, TB (thousands), KiB, MiB, GiB or TiB, such as 24GB or 16GiB"
REPLICA_VARIABLE = "SPLITFUSE_REPLICA"  # its name, as `serve --replicas` gives it
# Variables of ours that are no settings: this, the client's address, the folder of running servers' files, Prometheus's
# key in compose.yaml, the native part, the folder of our tests' models.
_OTHER_VARIABLES = {
    *(REPLICA_VARIABLE, "SPLITFUSE_BASE_URL", "SPLITFUSE_RUNTIME_DIR", "SPLITFUSE_METRICS_KEY", "SPLITFUSE_NATIVE"),
    "SPLITFUSE_TEST_MODELS",
}
# Kubernetes gives every pod SPLITFUSE_PORT=tcp://… and the like when a service is called splitfuse.
_KUBERNETES_NAME = re.compile(r"_(SERVICE_(HOST|PORT)\w*|PORT_\d+_(TCP|UDP)\w*)$")
_KUBERNETES_VALUE = re.compile(r"(tcp|udp)://")
_BOOLS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_SETTINGS = settings_of(Settings)
ENGINE_FIELDS = tuple(settings_of(EngineConfig))
ALL_FIELDS = tuple(_SETTINGS)


def byte_size(text: str) -> int:
    """Return the bytes of a size as people write it: 24GB, 16 GiB, 1073741824. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?B)|(-?\d+)", text.strip().upper())
    if match is None:
        raise ValueError(text)
    return int(match[3]) if match[3] else int(float(match[1]) * _UNITS[match[2]])


@dataclass(frozen=True)
class Source:
    """Origin of a value: kind of source, and the flag, variable or file that holds the value."""

    kind: str = "default"
    place: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.place}".rstrip()


class Resolved(NamedTuple):
    """Settings in force, and the sources of their values; a value without a source is the default."""

    settings: Settings
    sources: Mapping[str, Source]


def resolve(args: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Return the settings in force. `args`: the command line's values by field, and `config`. Raises ConfigError."""
    return resolve_sources(args, environ).settings


def resolve_sources(args: Mapping[str, Any], environ: Mapping[str, str]) -> Resolved:
    """Like resolve, but with the sources."""
    from_env = _from_env(environ)
    path_in_env = from_env.pop("config", None)
    path = args.get("config") or path_in_env
    from_file = _from_file(Path(path)) if path else {}
    given = {name: args[name] for name in ALL_FIELDS if args.get(name) is not None}
    from_flags = {name: _from_flag(_SETTINGS[name], given[name]) for name in given}
    sources = {
        **{name: Source("file", str(path)) for name in from_file},
        **{name: Source("environment", _SETTINGS[name].variable) for name in from_env},
        **{name: Source("flag", "MODEL" if name == "model" else _SETTINGS[name].flag) for name in from_flags},
    }
    return Resolved(Settings(**{**from_file, **from_env, **from_flags}), sources)


def _from_flag(setting: Setting, value: Any) -> Any:
    if isinstance(value, str):
        return _from_text(setting, value, source=setting.flag)
    return tuple(value) if isinstance(value, list) else value


def _from_env(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in _OTHER_VARIABLES:
            continue
        if _KUBERNETES_NAME.search(variable) or _KUBERNETES_VALUE.match(text):
            continue
        name = variable.removeprefix(ENV_PREFIX).lower()
        if name == "config":
            values[name] = text
        elif name in _SETTINGS:
            values[name] = _from_text(_SETTINGS[name], text, source=variable)
        elif near := _near(name):
            # Other programs may share the prefix; only a name close to a setting's is taken for a slip.
            raise ConfigError(f"environment variable {variable} is not known; did you mean {ENV_PREFIX}{near.upper()}?")
    return values


def _from_file(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in _read_yaml(path).items():
        name = str(key).replace("-", "_")
        if name not in _SETTINGS:
            hint = f"; did you mean {near}?" if (near := _near(name)) else ""
            raise ConfigError(f"--config {path}: {key} is not a setting{hint}")
        if name in values:
            raise ConfigError(f"--config {path}: {name} stands there twice")
        values[name] = _from_yaml(_SETTINGS[name], value, source=f"--config {path}: {key}")
    return values


def _read_yaml(path: Path) -> dict[Any, Any]:
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ConfigError(f"--config {path}: no such file") from exc
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"--config {path} cannot be read as YAML: {' '.join(str(exc).split())}") from exc
    if not isinstance(loaded, dict | None):
        raise ConfigError(f"--config {path} must hold settings as `name: value` lines")
    return loaded or {}


def _from_yaml(setting: Setting, value: Any, *, source: str) -> Any:
    kind = setting.kind
    if value in setting.words if isinstance(value, str) else value is False and "off" in setting.words:
        return value or "off"  # YAML reads off as false
    if isinstance(value, str) and (kind is tuple or setting.word_key or _takes_units(setting)):
        return (value,) if kind is tuple else _from_text(setting, value, source=source)
    if kind is tuple and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if type(value) is kind or (value is None and setting.default is None):
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise ConfigError(f"{source}: {value!r} is not {KIND_NAMES[kind]}")


def _from_text(setting: Setting, text: str, *, source: str) -> Any:
    """The value that a flag's or variable's text spells. Raises ConfigError."""
    if setting.word_key and not text.lstrip().startswith(("{", "[")):
        return {setting.word_key: text}
    if text in setting.words:
        return text
    parse = byte_size if _takes_units(setting) else _PARSERS[setting.kind]
    try:
        return parse(text)
    except (KeyError, ValueError, RecursionError) as exc:
        shown = text if len(text) <= 60 else text[:57] + "..."
        kind = SIZE_KIND if parse is byte_size else KIND_NAMES[setting.kind]
        raise ConfigError(f"{source}: {shown!r} is not {kind}") from exc


def _takes_units(setting: Setting) -> bool:
    return "_bytes" in setting.name


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


_PARSERS: dict[type, Callable[[str], Any]] = {
    bool: lambda text: _BOOLS[text.strip().lower()],
    int: int,
    float: float,
    str: str,
    tuple: lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
    dict: _object,
}


def _near(name: str) -> str | None:
    found = difflib.get_close_matches(name, [*ALL_FIELDS, "config"], n=1, cutoff=0.7)
    return found[0] if found else None
