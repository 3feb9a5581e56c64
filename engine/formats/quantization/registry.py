"""Registry of the modules that read a quant_method of config.json. A format is imported when it is used."""

from importlib import import_module
from typing import Any

from ...errors import ConfigError
from ..checkpoint_format import CheckpointFormat

# quant_method -> module with `parse(quantization_config) -> CheckpointFormat`, which raises ConfigError.
FORMATS = {
    "auto-round": ".auto_round",
    "awq": ".awq",
    "bitsandbytes": ".bitsandbytes",
    "compressed-tensors": ".compressed_tensors",
    "fbgemm_fp8": ".fp8",
    "fp8": ".fp8",
    "gptq": ".gptq",
    "modelopt": ".modelopt",
    "mxfp4": ".mxfp4",
    "torchao": ".torchao",
}


def checkpoint_format(quantization_config: Any) -> CheckpointFormat | None:
    """Return the format that config.json declares, None without one. Raises ConfigError for unsupported formats."""
    if not quantization_config:
        return None
    if not isinstance(quantization_config, dict):
        raise ConfigError(f"quantization_config must be an object, not {quantization_config!r:.100}")
    method = quantization_config.get("quant_method")
    if method is None and (quantization_config.get("load_in_8bit") or quantization_config.get("load_in_4bit")):
        method = "bitsandbytes"  # the only method before the field existed
    if method not in FORMATS:
        known = ", ".join(FORMATS)
        raise ConfigError(f"quantized as {method!r:.100}, which is not known; known: {known}, or the unquantized one")
    try:
        parsed: CheckpointFormat = import_module(FORMATS[method], __package__).parse(quantization_config)
    except ConfigError as exc:
        raise ConfigError(f"quantization_config: {exc}") from exc
    return parsed
