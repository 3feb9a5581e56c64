"""Speculative decoding: drafters, the number of tokens to draft, and their acceptance."""

from dataclasses import dataclass
from typing import Any

from ...config.engine_settings import EngineSettings
from ...config.named_models import DEMO_DRAFT
from ...config.setting import setting
from ...extension import EngineExtension
from .speculative_config import SpeculativeConfig


@dataclass(frozen=True, kw_only=True)
class SpeculationSettings(EngineSettings):
    """Settings of speculative decoding."""

    speculative_config: dict[str, Any] | None = setting(
        None,
        word_key="model",
        help=f"speculative decoding: ngram, suffix, a draft model's folder or hub id (demo's: {DEMO_DRAFT}), or JSON: "
        '{"method": "ngram", "num_speculative_tokens": 4}',
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.speculation  # checks it

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """Settings with their defaults, None without speculative decoding. Raises ConfigError."""
        return None if self.speculative_config is None else SpeculativeConfig.from_dict(self.speculative_config)

    @property
    def max_drafts(self) -> int:
        return self.speculation.num_speculative_tokens if self.speculation else 0

    @property
    def draft_model(self) -> str | None:
        return (self.speculation.model or None) if self.speculation else None


EXTENSION = EngineExtension(
    package=__name__,
    settings=SpeculationSettings,
    is_used=lambda config: config.speculation is not None,
    part="part:Drafting",
)
