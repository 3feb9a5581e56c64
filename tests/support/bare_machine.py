"""Machine that lacks packages: a folder on PYTHONPATH hides them."""

import os
from pathlib import Path

MISSING = (
    *("fastapi", "starlette", "pydantic", "pydantic_core", "annotated_types", "typing_inspection", "uvicorn", "uvloop"),
    *("llguidance", "prometheus_client", "openai", "matplotlib", "jsonschema", "hypothesis"),
    *("pytest_asyncio", "pytest_timeout", "xdist"),
)
# Not an importer that raises: libraries ask whether a package exists, and must get the answer no.
_TEXT = """
from importlib.machinery import PathFinder
right = PathFinder.find_spec
def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in {missing!r} else right(name, path, target)
PathFinder.find_spec = classmethod(find_spec)
"""


def without_packages(folder: Path, environment: dict[str, str], missing: tuple[str, ...] = MISSING) -> dict[str, str]:
    """Return the environment of a process that cannot import what is missing, nor can its children."""
    (folder / "sitecustomize.py").write_text(_TEXT.format(missing=missing))
    paths = [str(folder), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}
