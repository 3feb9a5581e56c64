"""Results in PostgreSQL that several servers share: leases, take-over, and the way to the server that runs a job."""

from ...extension import Extension
from .settings import SharedSettings

EXTENSION = Extension(
    package=__name__,
    requires=("server/results/durable", "server/results/batches"),
    settings=SharedSettings,
    is_used=lambda settings: settings.has_shared_results,
    part="part:SharedPart",
    shared_batches="shared_batches:SharedBatches",
)
