"""Forks: a kept answer goes on from one of its tokens, in another way; and its tokens with their alternatives."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/forks", "engine/extras/receipts"),
    paths=("/fork", "/result/*/tokens"),
    router="routes:router",
    kept_kinds={"fork": "request:KEPT_FORK"},
    part="origins:Origins",
)
