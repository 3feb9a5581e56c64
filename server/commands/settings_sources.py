"""Sources of settings: command line over environment over config file over default.

Makes the flags out of the declarations and turns text into values. Never knows what a setting means.
"""

import argparse
import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...engine.config import EngineConfig
from ...engine.config.setting import ENV_PREFIX, KIND_NAMES, Setting, settings_of
from ...engine.errors import ConfigError
from ..settings import Settings
from .byte_size import SIZE_KIND, byte_size

REPLICA_VARIABLE = "SPLITFUSE_REPLICA"  # its name, as `serve --replicas` gives it
# Variables of ours that are no settings: this, the client's address, Prometheus's key in compose.yaml, the native part.
_OTHER_VARIABLES = {REPLICA_VARIABLE, "SPLITFUSE_BASE_URL", "SPLITFUSE_METRICS_KEY", "SPLITFUSE_NATIVE"}
# Kubernetes gives every pod SPLITFUSE_PORT=tcp://… and the like when a service is called splitfuse.
_KUBERNETES_NAME = re.compile(r"_(SERVICE_(HOST|PORT)\w*|PORT_\d+_(TCP|UDP)\w*)$")
_KUBERNETES_VALUE = re.compile(r"(tcp|udp)://")
_BOOLS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_SETTINGS = settings_of(Settings)
ENGINE_FIELDS = tuple(settings_of(EngineConfig))
ALL_FIELDS = tuple(_SETTINGS)
# How --help groups them; what stands in none is the server's.
SECTIONS: dict[str, str] = {
    "model": "served_model_name device dtype load_format quantization quantization_activations speculative_config "
    "speculative_model num_speculative_tokens generation_config override_generation_config chat_template seed "
    "num_threads enforce_eager async_scheduling tensor_parallel_size tensor_parallel_slices",
    "memory": "max_model_len kv_cache_memory_bytes kv_cache_dtype gpu_memory_utilization num_kv_blocks block_size "
    "swap_space enable_prefix_caching",
    "scheduling": "max_num_seqs max_num_batched_tokens long_prefill_token_threshold batching_policy scheduling_policy "
    "tenant_weights max_seqs_per_key preemption_mode target_itl_ms max_queue_size max_queue_chars max_queue_seconds",
    "server": "",
    "results": "result_ttl results results_sync results_lease results_url results_key_file id_tag webhook_targets "
    "webhook_secret_file max_results max_unfinished_per_key max_result_bytes_per_key max_result_bytes max_file_bytes "
    "max_total_file_bytes file_ttl max_batch_lines max_batch_requests",
    "security": "api_key api_key_file admin_key admin_key_file allowed_hosts allowed_origins",
    "logging": "request_log log_format log_steps record metrics_prefix otlp_traces_endpoint",
    "compatibility": "enable_chunked_prefill tool_call_parser reasoning_parser",
}
_SECTION_OF = {name: section for section, names in SECTIONS.items() for name in names.split()}


def add_flags(parser: argparse.ArgumentParser, names: Iterable[str], *, shown: Collection[str] = SECTIONS) -> None:
    """One flag per setting; --help has those of the `shown` sections. A flag that is not given leaves no trace, so that
    the other sources count.
    """
    groups = {section: parser.add_argument_group(section) for section in SECTIONS if section in shown}
    parser.add_argument("--config", metavar="FILE", help=f"YAML file with settings [{ENV_PREFIX}CONFIG]")
    for setting in (_SETTINGS[name] for name in names if name != "model"):  # a positional argument of the command
        options: dict[str, Any] = {"metavar": setting.kind.__name__.upper()}
        if setting.kind is bool:
            options = {"action": argparse.BooleanOptionalAction}
        elif setting.kind is tuple:
            options = {"action": "append", "metavar": "TEXT"}
        group = groups.get(_SECTION_OF.get(setting.name, "server"))
        options["help"] = argparse.SUPPRESS if group is None else _help(setting)
        (group or parser).add_argument(setting.flag, dest=setting.name, default=argparse.SUPPRESS, **options)


def choices_of(name: str) -> tuple[str, ...]:
    """Return the words that the setting of this name takes, empty where it takes other values."""
    return _SETTINGS[name].choices if name in _SETTINGS else ()


def resolve(args: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Return the settings in force. `args`: the command line's values by field, and `config`. Raises ConfigError."""
    from_env = _from_env(environ)
    path_in_env = from_env.pop("config", None)
    path = args.get("config") or path_in_env
    values = _from_file(Path(path)) if path else {}
    given = {name: args[name] for name in ALL_FIELDS if args.get(name) is not None}
    return Settings(**values | from_env | {name: _from_flag(_SETTINGS[name], given[name]) for name in given})


def _help(setting: Setting) -> str:
    choices = f" ({', '.join(setting.choices)})" if setting.choices else ""
    default = f", default {setting.default}" if setting.default not in (None, ()) else ""
    return f"{setting.help}{choices} [{setting.variable}{default}]".replace("%", "%%")


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
    if isinstance(value, str) and (kind is tuple or _takes_units(setting)):
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
