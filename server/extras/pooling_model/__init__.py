"""An embedding model beside a chat model: `serve CHAT --embedding-model NAME`, in a server process of its own.

The folder's name comes after `embeddings`, whose endpoint of batches it takes over.
"""

from ...extension import Extension
from .settings import PoolingModelSettings

EXTENSION = Extension(
    package=__name__,
    requires=("server/apis/embeddings", "server/extras/replicas"),
    settings=PoolingModelSettings,
    is_used=lambda settings: settings.embedding_model is not None,
    part="part:PoolingModel",
    endpoints={"/v1/embeddings": "part:embed_batched"},
)
