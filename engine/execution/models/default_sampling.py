"""Default sampling: values of the sampling fields that a request leaves out, from the model's files and the settings.

Follows vLLM: `do_sample` is not read, and null counts as absent. Unlike vLLM's, max_new_tokens never limits a request
that sends max_tokens, and a model whose files state no distribution has its family's or llama.cpp's. Imports no torch.

Published values are those that a family's authors give for its chat models. A row of the table names a model of
huggingface.co, whose card or generation_config.json has them. Several families share an architecture of config.json,
and a text of the chat template tells them apart.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...config import EngineConfig
from ...core.sampling_params import SamplingParams
from ...errors import ConfigError, InvalidRequestError
from ...formats.json_file import read_json

_FILE = "generation_config.json"
_NEUTRAL = SamplingParams()
_WAY_OUT = "--generation-config vllm leaves its values out"
# vLLM's fields of the file, and the requests' names of them.
_FIELDS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    "max_new_tokens": "max_tokens",
}


# Fields of which one is enough to say that a model's files state its distribution.
_DISTRIBUTION = ("temperature", "top_p", "top_k", "min_p")


@dataclass(frozen=True)
class DefaultSampling:
    """Values of a model's files and of the settings, under the requests' names.

    `source` is for people: empty if the model's own file states a distribution, None if no file does.
    """

    stated: Mapping[str, Any]
    override: Mapping[str, Any]
    source: str | None

    def complete(self, *, architecture: str, template: str | None) -> "DefaultSampling":
        """Return the defaults with published values, if nothing is stated. `template`: None without a chat template."""
        if self.source is not None:
            return self
        row = None if template is None else published_sampling(architecture, template)
        source = "usual values; the model states none" if row is None else f"{row.family}'s published values"
        return DefaultSampling({**(GENERIC if row is None else row.values), **self.stated}, self.override, source)

    def values(self) -> dict[str, Any]:
        """Return the temperature, and the other values that are not neutral."""
        found = {"temperature": _NEUTRAL.temperature, **self.stated, **self.override}
        return {name: v for name, v in found.items() if name == "temperature" or v != getattr(_NEUTRAL, name)}


def default_sampling(config: EngineConfig, folder: Path) -> DefaultSampling:
    """Read the settings and the files, if a setting names them. `folder`: the model's folder or GGUF file.

    Raises ConfigError.
    """
    override = config.override_generation_config or {}
    if not isinstance(override, dict):
        raise ConfigError("override_generation_config must be an object")
    if unknown := sorted(override.keys() - _FIELDS):
        raise ConfigError(f"override_generation_config: {unknown[0]!r} is not known; known are {', '.join(_FIELDS)}")
    stated, source = _from_files(config, folder)
    return DefaultSampling(stated, _checked(override, source="override_generation_config"), source)


def _from_files(config: EngineConfig, folder: Path) -> tuple[dict[str, Any], str | None]:
    """Return the stated values, and the source as in DefaultSampling."""
    if config.generation_config == "vllm":
        return {}, "--generation-config vllm"
    if config.generation_config == "auto":
        own = _from_model(folder)
        return own, "" if any(name in own for name in _DISTRIBUTION) else None
    path = Path(config.generation_config).expanduser() / _FILE
    if not path.exists():
        raise ConfigError(f"generation_config: {path} is missing; give auto, vllm, or a folder that has this file")
    return _checked(_present(read_json(path)), source=str(path)), str(path)


def _from_model(folder: Path) -> dict[str, Any]:
    if folder.is_file():
        from ...formats.gguf.config_fields import read_generation_fields  # here: most models are folders

        return _checked(read_generation_fields(folder), source=f"{folder} ({_WAY_OUT})")
    path = folder / _FILE
    return _checked(_present(read_json(path)), source=f"{path} ({_WAY_OUT})") if path.exists() else {}


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _checked(fields: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the values in normal form, under the requests' names; null is the neutral value. Raises ConfigError."""
    values = {name: fields[own] for own, name in _FIELDS.items() if own in fields}
    try:
        params = SamplingParams.from_fields(values, names={"max_tokens": "max_new_tokens"})
    except InvalidRequestError as exc:
        raise ConfigError(f"{source}: {exc}") from exc
    return {name: getattr(params, name) for name in values}


# llama.cpp's defaults, for a model whose authors publish none and for text that no template frames.
GENERIC = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
_TABLE = Path(__file__).with_name("published_sampling.json")


class Published(NamedTuple):
    """Row of the table: values of one family, whose chat templates all have the text `marker`."""

    family: str
    architectures: list[str]
    marker: str
    values: dict[str, Any]
    source: str


def table() -> list[Published]:
    """Return the rows; the first one that fits a model counts."""
    return [Published(**row) for row in json.loads(_TABLE.read_text(encoding="utf-8"))]


def published_sampling(architecture: str, template: str) -> Published | None:
    """Return the row of a model with this chat template; None if its authors publish no values."""
    return next((row for row in table() if architecture in row.architectures and row.marker in template), None)
