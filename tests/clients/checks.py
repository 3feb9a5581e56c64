"""Helpers of this folder's scripts. A script runs in the venv of its client, so the helpers need no package."""

import json
import os
import sys
import traceback
import urllib.request
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)

QUESTION = "How is the weather in Rome?"
ANSWER = "It rains."
CALL = {"name": "weather", "arguments": {"town": "Rome"}}
WET = "It is wet."
# Arguments that any model gets right, since the checks are about the API.
TOWN_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"town": {"enum": ["Rome", "Oslo"]}, "unit": {"enum": ["C", "F"]}},
    "required": ["town", "unit"],
    "additionalProperties": False,
}


def key() -> str:
    """Return the server's key; most packages refuse to have none."""
    return os.environ.get("SPLITFUSE_API_KEY", "unused")


def model_of(url: str) -> str:
    """Return the name of the model that the server at `url` serves."""
    asked = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key()}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        name: str = json.load(answer)["data"][0]["id"]
    return name


def follow(url: str, *steps: str | Mapping[str, Any], marker: str = QUESTION, needs_tools: bool = True) -> None:
    """Have the model of a scripted server say these steps to the marked task: texts, or calls {"name", "arguments"}."""
    _scripted(url, {"marker": marker, "steps": steps, "needs_tools": needs_tools})


def said(url: str) -> list[str]:
    """Return the prompts to which the steps were said."""
    seen = _scripted(url, None)
    return [prompt for prompt, place in zip(seen["prompts"], seen["places"], strict=True) if place is not None]


class At:
    """Server of a script's model: where it is, its key and model, and the two conversations that most clients hold."""

    def __init__(self, url: str) -> None:
        self.url, self.v1, self.key, self.name = url, f"{url}/v1", key(), model_of(url)

    def follow(self, *steps: str | Mapping[str, Any], marker: str = QUESTION, needs_tools: bool = False) -> None:
        """Like the function of this name."""
        follow(self.url, *steps, marker=marker, needs_tools=needs_tools)

    def heard(self) -> list[str]:
        """Return the prompts to which the steps were said."""
        return said(self.url)

    def answers(self, ask: Callable[[], object]) -> None:
        """Assert that `ask` returns the model's text."""
        self.follow(ANSWER)
        text = ask()
        assert text == ANSWER, text

    def calls(self, ask: Callable[[], object], *, call: Mapping[str, Any] = CALL, needs_tools: bool = True) -> None:
        """Assert that `ask` runs the tool that the model calls, and returns what the model makes of the result."""
        self.follow(call, WET, needs_tools=needs_tools)
        text = str(ask())
        assert WET in text, text
        assert ANSWER in self.heard()[-1]


def _scripted(url: str, script: Mapping[str, Any] | None) -> Any:
    body = None if script is None else json.dumps(script).encode()
    headers = {"Authorization": f"Bearer {key()}"}
    asked = urllib.request.Request(f"{url}/scripted", body, headers, method="PUT" if body else "GET")
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return json.load(answer)


def raised(kind: type[E], call: Callable[[], object]) -> E:
    """Return the error of class `kind` that `call` must raise."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def each(of: Callable[[Any], None], *values: Any) -> Callable[[], None]:
    """Return the check that runs `of` with each of the values."""

    def check() -> None:
        for value in values:
            of(value)

    return check


def _version(package: str) -> str:
    """Return the version of a package of pip, or of npm."""
    about = Path(os.environ.get("NODE_PATH", ""), package, "package.json")
    return str(json.loads(about.read_text())["version"]) if about.exists() else version(package)


def main(checks_of: Callable[[str], object], package: str) -> int:
    """Run every public method of `checks_of(BASE_URL)`, like `run`."""
    checks = checks_of(sys.argv[1])
    return run({name: getattr(checks, name) for name in vars(type(checks)) if name[0] != "_"}, package)


def run(checks: Mapping[str, Callable[[], None]], package: str) -> int:
    """Run the checks in order. Returns the exit code.

    The first line of output names the package and its version; every other line is a check that passed or failed.
    """
    print(f"{package} {_version(package)}", flush=True)
    num_failed = 0
    for name, check in checks.items():
        try:
            check()
            print(f"ok    {name}", flush=True)
        except Exception:
            num_failed += 1
            print(f"FAIL  {name}\n{traceback.format_exc()}", flush=True)
    return int(num_failed > 0)
