"""The HTTP server, and its version."""

import importlib.metadata
from functools import cache


@cache
def package_version() -> str:
    """Return the installed version, as in `splitfuse --version` and GET /version."""
    try:
        return importlib.metadata.version("splitfuse")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
