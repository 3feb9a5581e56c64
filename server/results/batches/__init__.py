"""Uploaded files, and batches of requests that run in the background."""

from ...extension import Extension
from .settings import BatchSettings

EXTENSION = Extension(
    package=__name__,
    requires=("server/results/durable",),
    settings=BatchSettings,
    paths=("/v1/files", "/v1/batches"),
    router="routes:router",
    part="part:BatchesPart",
    starts=lambda settings: settings.has_durable_results,  # there may be batches to go on with
)
