"""SpeculativeConfig: settings of speculative decoding, under vLLM's names. Imports no torch."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...config.setting import check, setting
from ...errors import ConfigError

# Names of the model that mean a method: short, and for older versions of vLLM.
_METHOD_NAMES = {"ngram": "ngram", "[ngram]": "ngram", "suffix": "suffix"}
_SUFFIX_TOKENS = 32  # default of num_speculative_tokens with method suffix
_DRAFT_MODEL_TOKENS = 5  # default of num_speculative_tokens with a draft model


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Settings of `--speculative-config` with every default filled in. Raises ConfigError."""

    method: str = setting("ngram", choices=("ngram", "suffix", "draft_model"))
    model: str = setting("")  # for draft_model: a folder or hub id
    # An upper limit: the engine chooses how many tokens are worth drafting.
    num_speculative_tokens: int = setting(8, at_least=1, at_most=32)
    # For ngram: tokens of the shortest match, and of the longest, beyond which a longer match is no better.
    prompt_lookup_min: int = setting(2, at_least=1, at_most=64)
    prompt_lookup_max: int = setting(8, at_least=1, at_most=64)
    adaptive: bool = setting(True)  # False: always draft num_speculative_tokens, whether they pay or not

    def __post_init__(self) -> None:
        check(self)
        if not isinstance(self.model, str):
            raise ConfigError("model must be a folder or hub id")
        if self.method == "draft_model" and not self.model.strip():
            raise ConfigError('method draft_model needs a "model", a folder or hub id')
        if self.method != "draft_model" and self.model:
            raise ConfigError(f"method {self.method} has no model, but model {self.model!r} is given")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            bounds = f"prompt_lookup_min {self.prompt_lookup_min} is more than prompt_lookup_max"
            raise ConfigError(f"{bounds} {self.prompt_lookup_max}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SpeculativeConfig":
        """Read the JSON object. A field set to null counts as absent. Raises ConfigError."""
        try:
            return cls(**_with_defaults(values))
        except ConfigError as exc:
            raise ConfigError(f"speculative_config: {exc}") from exc


def _with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields, with the defaults that depend on other fields filled in."""
    known = [field.name for field in dataclasses.fields(SpeculativeConfig)]
    if unknown := sorted(set(values) - set(known)):
        raise ConfigError(f"{unknown[0]!r} is not known; known are {', '.join(known)}")
    fields = {name: value for name, value in values.items() if value is not None}
    if (named := _METHOD_NAMES.get(str(fields.get("model")))) is not None:
        fields = {"method": named, **fields, "model": ""}
    fields.setdefault("method", "draft_model" if fields.get("model") else None)  # None is refused
    if fields["method"] != "ngram" and ("prompt_lookup_min" in fields or "prompt_lookup_max" in fields):
        raise ConfigError("prompt_lookup_min and prompt_lookup_max go with method ngram")
    if fields["method"] == "draft_model":
        fields.setdefault("num_speculative_tokens", _DRAFT_MODEL_TOKENS)
    if fields["method"] == "suffix":
        fields.setdefault("num_speculative_tokens", _SUFFIX_TOKENS)
    # The default of one bound never contradicts the other bound.
    least, most = fields.get("prompt_lookup_min"), fields.get("prompt_lookup_max")
    if least is None and type(most) is int:
        fields["prompt_lookup_min"] = min(SpeculativeConfig.prompt_lookup_min, most)
    if most is None and type(least) is int:
        fields["prompt_lookup_max"] = max(SpeculativeConfig.prompt_lookup_max, least)
    return fields
