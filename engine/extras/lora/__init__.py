"""Adapters (LoRA) per request: a low-rank change of a model's linears, mixed in one batch."""

from dataclasses import dataclass

from ...config.engine_settings import EngineSettings
from ...config.setting import setting
from ...errors import ConfigError
from ...extension import EngineExtension


@dataclass(frozen=True, kw_only=True)
class AdapterSettings(EngineSettings):
    """Settings of adapters."""

    enable_lora: bool = setting(False, help="serve adapters (LoRA) beside the model, chosen by a request's `model`")
    lora_modules: tuple[str, ...] = setting(
        (), help='adapters to begin with, as NAME=PATH, or as JSON: {"name": "sql", "path": "PATH"}'
    )
    max_loras: int = setting(8, at_least=1, help="most adapters in memory; requests of others wait for a place")
    max_lora_rank: int = setting(256, at_least=1, at_most=256, help="largest rank of an adapter")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lora_modules and not self.enable_lora:
            raise ConfigError("lora_modules need enable_lora")
        if self.enable_lora and (self.tensor_parallel_slices or self.tensor_parallel_size) > 1:
            raise ConfigError("enable_lora is not built with tensor_parallel_size or slices; leave one of them out")


EXTENSION = EngineExtension(
    package=__name__,
    settings=AdapterSettings,
    is_used=lambda config: config.enable_lora,
    part="adapters:Adapters.of",
    decoder_wrapper="adapted:adapted",
    keywords={"lora_request": "adapters:with_adapters"},
)
