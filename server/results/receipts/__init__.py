"""Receipts of answers, and POST /verify, which checks an answer in one pass over its tokens."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/receipts",),
    paths=("/verify",),
    router="routes:router",
    receipts="part:Receipts",
    part="part:Receipts",
    starts=lambda settings: False,
)
