"""Run kernel tests where pytest is not installed: as much of it as they use, and every n-th test of a file on request.

    python tests/kernels/run_tests.py [--shard 0/4] tests/kernels/cuda/test_attention_decode.py ...

On a card each test compiles its own kernels, about a second each: shards compile side by side.
"""

import argparse
import importlib.util
import inspect
import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

Test = tuple[str, Callable[..., None], dict[str, Any]]


class Skipped(Exception):
    """What `pytest.skip` raises."""


class MonkeyPatch:
    """setattr, undone at the end of the test."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def setattr(self, target: Any, name: str, value: Any) -> None:
        self._undo.callback(setattr, target, name, getattr(target, name))
        setattr(target, name, value)

    def undo(self) -> None:
        self._undo.close()


def _parametrize(names: str | Iterable[str], values: Iterable[Any], ids: Any = None) -> Callable[[Any], Any]:
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [dict(zip(split, value if len(split) > 1 else [value], strict=True)) for value in values]

    def mark(function: Any) -> Any:
        function.cases = [rows, *getattr(function, "cases", [])]
        return function

    return mark


def _skip(reason: str) -> None:
    raise Skipped(reason)


def _fixture(*, autouse: bool) -> Callable[[Any], Any]:
    assert autouse, "no other fixture is known here"

    def mark(function: Any) -> Any:
        function.is_fixture = True
        return function

    return mark


def as_pytest() -> ModuleType:
    module = ModuleType("pytest")
    mark = SimpleNamespace(parametrize=_parametrize, filterwarnings=lambda rule: None)
    parts = {"mark": mark, "skip": _skip, "fixture": _fixture}
    vars(module).update(parts, MonkeyPatch=MonkeyPatch)
    return module


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def tests_of(module: ModuleType) -> Iterator[Test]:
    for name, function in vars(module).items():
        if name.startswith("test_"):
            for combination in itertools.product(*getattr(function, "cases", [])):
                arguments = {key: value for case in combination for key, value in case.items()}
                shown = "-".join(str(getattr(value, "__name__", value)) for value in arguments.values())
                yield f"{name}[{shown}]" if shown else name, function, arguments


@contextmanager
def _fixtures(module: ModuleType, function: Callable[..., None], arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    patch = MonkeyPatch()
    with ExitStack() as stack:
        stack.callback(patch.undo)

        def wanted(by: Callable[..., Any]) -> dict[str, Any]:
            return {"monkeypatch": patch} if "monkeypatch" in inspect.signature(by).parameters else {}

        for fixture in vars(module).values():
            if getattr(fixture, "is_fixture", False):
                if inspect.isgeneratorfunction(fixture):
                    stack.enter_context(contextmanager(fixture)(**wanted(fixture)))
                else:
                    fixture(**wanted(fixture))
        yield {**arguments, **wanted(function)}


def run(module: ModuleType, test: Test) -> str:
    """passed, skipped or failed; a failure is printed."""
    name, function, arguments = test
    try:
        with _fixtures(module, function, arguments) as given:
            function(**given)
    except Skipped:
        return "skipped"
    except Exception:
        print(f"FAILED {module.__name__}::{name}", traceback.format_exc(limit=-4), sep="\n", flush=True)
        return "failed"
    return "passed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shard", default="0/1", help="which of how many parts")
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    index, count = map(int, options.shard.split("/"))
    sys.modules["pytest"] = as_pytest()
    sys.path.append(str(Path(__file__).parent))
    modules = [load(path) for path in options.files]
    tests = [(module, test) for module in modules for test in tests_of(module)][index::count]
    outcomes = [run(*pair) for pair in tests]
    print(", ".join(f"{outcomes.count(kind)} {kind}" for kind in ("passed", "skipped", "failed")), flush=True)
    return int("failed" in outcomes)


if __name__ == "__main__":
    sys.exit(main())
