"""Routes that load and unload adapters (LoRA) while the model serves."""

from ...extension import Extension
from .settings import LoraSettings

EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/lora",),
    settings=LoraSettings,
    is_used=lambda settings: settings.enable_lora,
    paths=("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    router="routes:router",
)
