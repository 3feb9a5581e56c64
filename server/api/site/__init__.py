"""The documentation as a site at /docs/, in installations that have its archive: wheels of `make wheel`."""

from pathlib import Path

from ...extension import Extension

ARCHIVE = Path(__file__).with_name("site.zip")
EXTENSION = Extension(
    package=__name__,
    is_used=lambda settings: ARCHIVE.is_file(),
    paths=("/docs",),
    router="routes:router",
    manual="routes:home",
    is_open="routes:is_open",
)
