"""Which splitfuse this is."""

import importlib.metadata
from functools import cache


@cache
def package_version() -> str:
    """The installed version, as in `splitfuse --version` and GET /version."""
    try:
        return importlib.metadata.version("splitfuse")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
