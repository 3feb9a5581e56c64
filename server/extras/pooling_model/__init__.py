"""An embedding model beside a chat model: `serve CHAT --embedding-model NAME`, in a server process of its own.

The folder's name comes after `embeddings`, whose endpoint of batches it takes over.
"""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ....engine.errors import ConfigError
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class PoolingModelSettings(ServerSettings):
    """The second model."""

    embedding_model: str | None = setting(
        None,
        help="second model, for embeddings, rerank and scores: a folder, a file or a hub id. It runs on the processor, "
        "in a process that gives way to the first model",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_model is not None and getattr(self, "pooler_config", None) is not None:
            raise ConfigError("--embedding-model stands beside a model that makes text: leave out --pooler-config")


EXTENSION = Extension(
    package=__name__,
    requires=("server/apis/embeddings", "server/extras/replicas"),
    settings=PoolingModelSettings,
    is_used=lambda settings: settings.embedding_model is not None,
    part="part:PoolingModel",
    endpoints={"/v1/embeddings": "part:embed_batched"},
)
