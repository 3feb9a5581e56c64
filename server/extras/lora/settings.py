"""The setting of the routes for adapters."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class LoraSettings(ServerSettings):
    """Place of the files that POST /v1/load_lora_adapter may name."""

    lora_dir: str | None = setting(
        None, help="folder that holds every lora_path of /v1/load_lora_adapter; without it an admin may name any"
    )
