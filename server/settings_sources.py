"""Where settings come from: command line over environment over config file over default.

Makes the flags out of the Settings class and turns text into values. Never knows what a setting means.
"""

import argparse
import dataclasses
import difflib
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..engine.config import EngineConfig
from ..engine.errors import ConfigError
from .settings import HELP, Settings

ENV_PREFIX = "SPLITFUSE_"
# Variables of ours that are no settings: the client's address, Prometheus's key in compose.yaml, the native library.
_OTHER_VARIABLES = {"SPLITFUSE_BASE_URL", "SPLITFUSE_METRICS_KEY", "SPLITFUSE_NATIVE"}
# Kubernetes gives every pod SPLITFUSE_PORT=tcp://… and the like when a service is called splitfuse.
_KUBERNETES_NAME = re.compile(r"_(SERVICE_(HOST|PORT)\w*|PORT_\d+_(TCP|UDP)\w*)$")
_KUBERNETES_VALUE = re.compile(r"(tcp|udp)://")
_UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30}
_HINTS = typing.get_type_hints(Settings)
_FIELDS = {f.name: f for f in dataclasses.fields(Settings)}
ENGINE_FIELDS = tuple(f.name for f in dataclasses.fields(EngineConfig))
ALL_FIELDS = tuple(_FIELDS)


def add_flags(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """One flag per setting. A flag that is not given leaves no trace, so that the other sources can speak."""
    group = parser.add_argument_group("settings (flag = environment variable = key in the --config file)")
    group.add_argument("--config", metavar="FILE", help=f"YAML file with settings [{ENV_PREFIX}CONFIG]")
    for name in names:
        if name == "model":  # a positional argument of the command
            continue
        options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": _help(name)}
        if _kind(name) is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif _kind(name) is tuple:
            options |= {"action": "append", "metavar": "KEY"}
        else:
            options["metavar"] = _kind(name).__name__.upper()
        group.add_argument(flag(name), **options)


def flag(name: str) -> str:
    """`max_num_seqs` as a flag."""
    return "--" + name.replace("_", "-")


def resolve(args: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """The settings in force. `args`: what the command line gave, by field name, and `config`. Raises ConfigError."""
    from_env = _from_env(environ)
    path = args.get("config") or from_env.pop("config", None)
    from_env.pop("config", None)
    values = _from_file(Path(path)) if path else {}
    values |= from_env
    for name in _FIELDS:
        if args.get(name) is not None:
            values[name] = _from_flag(name, args[name])
    return Settings(**values)


def _help(name: str) -> str:
    default = _FIELDS[name].default
    shown = f", default {default}" if default not in (None, ()) else ""
    return f"{HELP.get(name, '')} [{ENV_PREFIX}{name.upper()}{shown}]".replace("%", "%%").strip()


def _kind(name: str) -> type:
    """The plain type of a field: `int | None` is int, `tuple[str, ...]` is tuple."""
    hint = _HINTS[name]
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    kind: type = typing.get_origin(hint) or hint
    return kind


def _from_flag(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return _from_text(name, value, source=flag(name))
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
        elif name in _FIELDS:
            values[name] = _from_text(name, text, source=variable)
        elif near := _near(name):
            # Other programs may share the prefix; only a name close to a setting's is taken for a slip.
            raise ConfigError(f"environment variable {variable} is not known; did you mean {ENV_PREFIX}{near.upper()}?")
    return values


def _from_file(path: Path) -> dict[str, Any]:
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise ConfigError(f"--config {path}: no such file") from exc
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"--config {path} cannot be read as YAML: {' '.join(str(exc).split())}") from exc
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"--config {path} must hold settings as `name: value` lines")
    values: dict[str, Any] = {}
    for key, value in loaded.items():
        name = str(key).replace("-", "_")
        if name not in _FIELDS:
            hint = f"; did you mean {near}?" if (near := _near(name)) else ""
            raise ConfigError(f"--config {path}: {key} is not a setting{hint}")
        if name in values:
            raise ConfigError(f"--config {path}: {name} stands there twice")
        values[name] = _from_yaml(name, value, source=f"--config {path}: {key}")
    return values


def _from_yaml(name: str, value: Any, *, source: str) -> Any:
    kind = _kind(name)
    if value is None and _FIELDS[name].default is None:
        return None
    if kind is tuple and isinstance(value, (str, list)):
        items = [value] if isinstance(value, str) else value
        if all(isinstance(item, str) for item in items):
            return tuple(items)
    if kind is int and name.endswith("_bytes") and isinstance(value, str):
        return _from_text(name, value, source=source)
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise ConfigError(f"{source}: {value!r} is not {_WORDS[kind]}")


def _from_text(name: str, text: str, *, source: str) -> Any:
    """The value that a flag's or variable's text spells. Raises ConfigError."""
    kind = _kind(name)
    try:
        if kind is bool:
            return _BOOLS[text.strip().lower()]
        if kind is int:
            return _int(text, with_unit=name.endswith("_bytes"))
        if kind is float:
            return float(text)
        if kind is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if kind is dict:
            return _object(text)
    except (KeyError, ValueError, RecursionError) as exc:
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise ConfigError(f"{source}: {shown!r} is not {_WORDS[kind]}") from exc
    return text


_WORDS: dict[type, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    tuple: "a string or a list of strings",
    dict: "an object",
}
_BOOLS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _int(text: str, *, with_unit: bool) -> int:
    match = re.fullmatch(r"([\d.]+)\s*([kmg]ib)", text.strip().lower()) if with_unit else None
    return int(float(match[1]) * _UNITS[match[2]]) if match else int(text)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def _near(name: str) -> str | None:
    found = difflib.get_close_matches(name, [*_FIELDS, "config"], n=1, cutoff=0.7)
    return found[0] if found else None
