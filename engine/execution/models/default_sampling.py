"""Default sampling: values of the sampling fields that a request leaves out, from the model's files and the settings.

Follows vLLM: `do_sample` is not read, and null counts as absent. Unlike vLLM's, max_new_tokens never limits a request
that sends max_tokens. Imports no torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...config import EngineConfig
from ...config.named_models import NAMED_SAMPLING
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


def default_sampling_params(config: EngineConfig, folder: Path) -> dict[str, Any]:
    """Return the values under the requests' names, without neutral ones. `folder`: the model's folder or GGUF file.

    Raises ConfigError.
    """
    override = config.override_generation_config or {}
    if not isinstance(override, dict):
        raise ConfigError("override_generation_config must be an object")
    if unknown := sorted(override.keys() - _FIELDS):
        raise ConfigError(f"override_generation_config: {unknown[0]!r} is not known; known are {', '.join(_FIELDS)}")
    values = _from_files(config, folder) | _checked(override, source="override_generation_config")
    return {name: value for name, value in values.items() if value != getattr(_NEUTRAL, name)}


def _from_files(config: EngineConfig, folder: Path) -> dict[str, Any]:
    if config.generation_config == "vllm":
        return {}
    if config.generation_config == "auto":
        return NAMED_SAMPLING.get(config.model or "", {}) | _from_model(folder)
    path = Path(config.generation_config).expanduser() / _FILE
    if not path.exists():
        raise ConfigError(f"generation_config: {path} is missing; give auto, vllm, or a folder that has this file")
    return _checked(read_json(path), source=str(path))


def _from_model(folder: Path) -> dict[str, Any]:
    if folder.is_file():
        from ...formats.gguf.config_fields import read_generation_fields  # here: most models are folders

        return _checked(read_generation_fields(folder), source=f"{folder} ({_WAY_OUT})")
    path = folder / _FILE
    return _checked(read_json(path), source=f"{path} ({_WAY_OUT})") if path.exists() else {}


def _checked(fields: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the values in normal form, under the requests' names; null is the neutral value. Raises ConfigError."""
    values = {name: fields[own] for own, name in _FIELDS.items() if own in fields}
    try:
        params = SamplingParams.from_fields(values, names={"max_tokens": "max_new_tokens"})
    except InvalidRequestError as exc:
        raise ConfigError(f"{source}: {exc}") from exc
    return {name: getattr(params, name) for name in values}
