"""Results that outlive the process, in SQLite: written before they are delivered, taken up again after a crash."""

from ...extension import Extension
from .settings import DurableSettings

EXTENSION = Extension(
    package=__name__,
    settings=DurableSettings,
    is_used=lambda settings: settings.has_durable_results and not settings.has_shared_results,
    paths=("/results/backup",),
    router="backup:router",
    part="part:DurablePart",
)
