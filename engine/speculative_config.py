"""SpeculativeConfig: who drafts tokens and how many, read from vLLM's names. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError

METHODS = ("ngram", "draft_model")
MAX_SPECULATIVE_TOKENS = 32
_MAX_LOOKUP = 64
_NGRAM_NAMES = ("ngram", "[ngram]")  # as a model's name, which older versions of vLLM take
# Most tokens of one draft where nobody says: only a limit, the engine chooses how many are worth it.
_NUM_TOKENS = {"ngram": 8, "draft_model": 5}
_LOOKUP_MIN, _LOOKUP_MAX = 2, 8
_FIELDS = ("method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max", "adaptive")


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """What `--speculative-config` comes to, with every default filled in."""

    method: str
    num_speculative_tokens: int
    model: str = ""  # of draft_model: a folder or hub id
    prompt_lookup_min: int = _LOOKUP_MIN  # of ngram: tokens of the shortest match
    prompt_lookup_max: int = _LOOKUP_MAX  # matches longer than this are no better
    adaptive: bool = True  # False: always num_speculative_tokens, whether they pay or not

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "SpeculativeConfig":
        """Read the JSON object. A field set to null counts as absent. Raises ConfigError."""
        unknown = sorted(set(given) - set(_FIELDS))
        if unknown:
            raise ConfigError(f"speculative_config: {unknown[0]!r} is not known; known are {', '.join(_FIELDS)}")
        fields = {name: value for name, value in given.items() if value is not None}
        method, model = _method(fields)
        if method != "ngram" and ("prompt_lookup_min" in fields or "prompt_lookup_max" in fields):
            raise ConfigError("speculative_config: prompt_lookup_min and prompt_lookup_max go with method ngram")
        least = _number(fields, "prompt_lookup_min", _LOOKUP_MIN, _MAX_LOOKUP)
        most = _number(fields, "prompt_lookup_max", max(_LOOKUP_MAX, least), _MAX_LOOKUP)
        if "prompt_lookup_min" not in fields:
            least = min(least, most)
        if least > most:
            raise ConfigError(f"speculative_config: prompt_lookup_min {least} is more than prompt_lookup_max {most}")
        adaptive = fields.get("adaptive", True)
        if not isinstance(adaptive, bool):
            raise ConfigError("speculative_config: adaptive must be true or false")
        return cls(
            method=method,
            model=model,
            num_speculative_tokens=_number(
                fields, "num_speculative_tokens", _NUM_TOKENS[method], MAX_SPECULATIVE_TOKENS
            ),
            prompt_lookup_min=least,
            prompt_lookup_max=most,
            adaptive=adaptive,
        )


def _method(fields: Mapping[str, Any]) -> tuple[str, str]:
    """The method and its model; a model alone is a draft model."""
    model = fields.get("model", "")
    if not isinstance(model, str):
        raise ConfigError("speculative_config: model must be a folder or hub id")
    if model in _NGRAM_NAMES:
        model = ""
        fields = {"method": "ngram", **fields}
    method = fields.get("method", "draft_model" if model else None)
    if method not in METHODS:
        raise ConfigError(f"speculative_config: method must be one of {', '.join(METHODS)}, not {method!r}")
    if method == "draft_model" and not model.strip():
        raise ConfigError('speculative_config: method draft_model needs a "model", a folder or hub id')
    if method == "ngram" and model:
        raise ConfigError(f"speculative_config: method ngram has no model, but model {model!r} is given")
    return method, model


def _number(fields: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigError(f"speculative_config: {name} must be an integer from 1 to {most}, not {value!r}")
    return value


def speculative_config(
    fields: Mapping[str, Any] | None, *, model: str | None, num_tokens: int | None
) -> SpeculativeConfig | None:
    """From the JSON object, or from the two short flags; None: no speculation. Raises ConfigError."""
    if fields is None and model is None:
        if num_tokens is not None:
            raise ConfigError("num_speculative_tokens: name who drafts: speculative_model ngram, or a model's folder")
        return None
    if fields is not None and (model is not None or num_tokens is not None):
        raise ConfigError("speculative_config says all; leave speculative_model and num_speculative_tokens out")
    return SpeculativeConfig.from_dict(
        {"model": model, "num_speculative_tokens": num_tokens} if fields is None else fields
    )
