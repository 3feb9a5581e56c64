"""What the scripts of this folder share. A script runs in the venv of its client, so this needs nothing installed."""

import json
import os
import sys
import traceback
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)

QUESTION = "How is the weather in Rome?"
ANSWER = "It rains."
# Arguments that any model gets right: what is checked is the API.
TOWN_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"town": {"enum": ["Rome", "Oslo"]}, "unit": {"enum": ["C", "F"]}},
    "required": ["town", "unit"],
    "additionalProperties": False,
}


def key() -> str:
    """The server's key; most packages refuse to have none."""
    return os.environ.get("SPLITFUSE_API_KEY", "unused")


def model_of(url: str) -> str:
    """The name under which the server at `url` serves its model."""
    asked = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key()}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        name: str = json.load(answer)["data"][0]["id"]
    return name


def raised(kind: type[E], call: Callable[[], object]) -> E:
    """What `call` raises, which has to be a `kind`."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def main(checks_of: Callable[[str], object], package: str) -> int:
    """Run every public method of what `checks_of(BASE_URL)` makes, in order; the exit code.

    The first line names the package and its version, each other one a check that passed or failed.
    """
    print(f"{package} {version(package)}", flush=True)
    checks, num_failed = checks_of(sys.argv[1]), 0
    for name in [name for name in vars(type(checks)) if name[0] != "_"]:
        try:
            getattr(checks, name)()
            print(f"ok    {name}", flush=True)
        except Exception:
            num_failed += 1
            print(f"FAIL  {name}\n{traceback.format_exc()}", flush=True)
    return int(num_failed > 0)
