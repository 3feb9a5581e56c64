"""Pooling: embeddings, scores and classes of prompts, computed in the same steps as generation."""

from dataclasses import dataclass
from typing import Any

from ...config.engine_settings import EngineSettings
from ...config.setting import setting
from ...extension import EngineExtension


@dataclass(frozen=True, kw_only=True)
class PoolingSettings(EngineSettings):
    """Settings of models that pool."""

    pooler_config: dict[str, Any] | None = setting(
        None, help='how a model makes embeddings, if its files do not say or say otherwise: {"pooling_type": "MEAN"}'
    )


EXTENSION = EngineExtension(
    package=__name__,
    settings=PoolingSettings,
    part="part:pooler_for",
    decoder="families:pooling_class",
    calls={
        "embed": "llm_calls:embed",
        "classify": "llm_calls:classify",
        "encode": "llm_calls:encode",
        "score": "llm_calls:score",
    },
)
