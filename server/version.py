"""Installed version of splitfuse."""

import importlib.metadata
from functools import cache


@cache
def package_version() -> str:
    """Return the version, for `splitfuse --version` and GET /version."""
    try:
        return importlib.metadata.version("splitfuse")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
