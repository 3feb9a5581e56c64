"""Several whole servers behind one port: `serve --replicas N`. HAProxy is the data path; Ray only places processes."""

from ...extension import Extension
from .settings import ReplicaSettings

EXTENSION = Extension(
    package=__name__,
    settings=ReplicaSettings,
    is_used=lambda settings: settings.replicas is not None,
    serve="supervisor:serve_replicas",
)
