"""Models that transformers' modules serve: --model-impl transformers, or auto without a native class."""

from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...extension import has_extra, load_extra
from .config import ModelConfig

if TYPE_CHECKING:
    from .decoder import Decoder

_EXTRA, _SETTING = "transformers_impl", "--model-impl transformers"


def model_class() -> "type[Decoder]":
    """Import the class of all such models. Raises ConfigError."""
    found: type[Decoder] = load_extra(f"{_EXTRA}.model", needed_for=_SETTING).TransformersModel
    return found


def parse(raw: dict[str, Any], generation: dict[str, Any], *, source: str, impl: str) -> ModelConfig | None:
    """Return the model's shape; None if transformers has no class for it and `impl` is auto. Raises ConfigError."""
    if impl == "auto" and not has_extra(_EXTRA):
        return None
    if impl == "transformers" and source.endswith(".gguf"):
        raise ConfigError(f"{_SETTING} reads safetensors, and this is a GGUF file")
    extra = load_extra(f"{_EXTRA}.config", needed_for=_SETTING)
    if impl == "auto" and not extra.has_class(raw):
        return None
    try:
        parsed: ModelConfig = extra.parse(raw, generation)
    except ConfigError as exc:
        name = (raw.get("architectures") or ["(none named)"])[0]
        raise ConfigError(f"architecture {name!r} cannot be served through transformers: {exc}") from exc
    return parsed
