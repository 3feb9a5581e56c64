"""Data that nobody of this project wrote, in a folder beside the clone. Tests that need the data skip without it."""

from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
FOLDER = next((path / "shared" for path in _ROOT.parents if (path / "shared" / "conformance").is_dir()), None)
needs_published = pytest.mark.skipif(FOLDER is None, reason="needs the folder shared/conformance beside the clone")


def published(path: str) -> Path:
    """Return a file of the folder; a path that does not exist if there is no folder."""
    return (FOLDER or Path("no-published-data")) / path
