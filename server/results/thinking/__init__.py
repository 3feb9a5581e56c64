"""Thinking: POST /result/{seq_id}/stop_thinking ends the reasoning of a running answer."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/thinking",),
    paths=("/result/*/stop_thinking",),
    router="routes:router",
    part="part:RunningJobs",
)
