"""Routes that load and unload adapters (LoRA) while the model serves."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class LoraSettings(ServerSettings):
    """Place of the files that POST /v1/load_lora_adapter may name."""

    lora_dir: str | None = setting(
        None, help="folder that holds every lora_path of /v1/load_lora_adapter; without it an admin may name any"
    )


EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/lora",),
    settings=LoraSettings,
    is_used=lambda settings: getattr(settings, "enable_lora", False),
    paths=("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    router="routes:router",
)
