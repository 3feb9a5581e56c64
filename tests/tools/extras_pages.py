"""Writes server/docs/extras.md: a section per extra with its size, what loads it, its ports, packages and tests.

Reads sources only, so it needs no package. `--check` writes nothing and fails if the page is out of date.
"""

import ast
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "server/docs/extras.md"
HOMES = ("engine/extras", "server/extras", "server/apis")
ROUNDING = 50  # lines, so that a small edit does not change the page
HEAD = f"""# Extras

An extra is a folder that can be deleted; the rest still runs, as `tests/engine/behaviour/test_removal.py` proves.
`make docs` writes this page. Lines are rounded to {ROUNDING}. Packages are those that only extras import. Tests are the
extra's folder of tests, behaviour tests that bear its name, and tests that import it.
"""


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def modules(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def parts() -> list[Path]:
    """Modules of the engine and the server outside of extras."""
    return [path for path in modules("engine", "server") if not shown(path).startswith(HOMES)]


@cache
def walked(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def calls(path: Path) -> list[ast.Call]:
    return [node for node in walked(path) if isinstance(node, ast.Call)]


def classes(paths: list[Path]) -> list[ast.ClassDef]:
    return [node for path in paths for node in walked(path) if isinstance(node, ast.ClassDef)]


def packages(paths: list[Path]) -> set[str]:
    """Top-level names of other packages that these modules import."""
    names = set[str]()
    for node in (node for path in paths for node in walked(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module))
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"splitfuse"}


def loads(extra: Path) -> list[str]:
    """Parts that name a module of the engine's extra (`load_extra`); fields of a server extra's EXTENSION."""
    lines, dotted = [], re.compile(rf"'({extra.name}(?:\.\w+)+)'")
    for path in parts() if extra.parts[-3] == "engine" else ():
        for call in calls(path):
            if call.args and (name := dotted.fullmatch(ast.unparse(call.args[0]))):
                reasons = [item.value.value for item in call.keywords if isinstance(item.value, ast.Constant)]
                lines.append(" for ".join([f"`{name[1]}` by `{shown(path)}`", *map(str, reasons)]))
    extensions = [call for call in calls(extra / "__init__.py") if ast.unparse(call.func) == "Extension"]
    fields = [item for call in extensions for item in call.keywords if item.arg != "package"]
    return lines + [f"`{item.arg}={ast.unparse(item.value)}`".replace("|", r"\|") for item in fields]


@cache
def methods(node: ast.ClassDef) -> set[tuple[str, int, str]]:
    """Name, number of positional arguments and keyword-only arguments of each method."""
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {(item.name, len(item.args.args), " ".join(arg.arg for arg in item.args.kwonlyargs)) for item in functions}


def ports(extra: Path) -> list[str]:
    """Protocols of the extra's package, outside of extras, of which one of its classes has all methods."""
    top = [path for path in parts() if path.relative_to(ROOT).parts[0] == extra.parts[-3]]
    protocols = [node for node in classes(top) if "Protocol" in map(ast.unparse, node.bases) and methods(node)]
    pairs = [(port, node) for port in protocols for node in classes(modules(shown(extra)))]
    return [f"`{port.name}`: {node.name}" for port, node in pairs if methods(port) <= methods(node)]


def tests(extra: Path) -> list[str]:
    folder, words = ROOT / "tests" / shown(extra), "|".join(word[:4] for word in extra.name.split("_"))
    imported = re.compile(rf"splitfuse\.{shown(extra).replace('/', '.')}\b")
    bearing = re.compile(rf"tests/{extra.parts[-3]}/behaviour/test_(\w+_)?({words})\w*\.py")
    outside = [path for path in modules("tests") if path.name.startswith("test_") and folder not in path.parents]
    found = [path for path in outside if bearing.fullmatch(shown(path)) or imported.search(path.read_text())]
    return [f"`{shown(path)}`" for path in ([folder] if folder.is_dir() else []) + found]


def section(extra: Path) -> str:
    files = [path for path in extra.rglob("*") if path.suffix in {".py", ".js", ".css", ".html"}]
    num_lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    rows = {
        "size": [f"{max(1, round(num_lines / ROUNDING)) * ROUNDING:,} lines in {len(files)} files"],
        "plugs in as": loads(extra),
        "implements": ports(extra),
        "packages": sorted(packages(modules(shown(extra))) - packages(parts())),
        "tests": tests(extra),
    }
    purpose = (extra / "__init__.py").read_text(encoding="utf-8").split('"""')[1].partition("\n")[0]
    table = "".join(f"| {name} | {'<br>'.join(lines)} |\n" for name, lines in rows.items() if lines)
    return f"\n## {shown(extra)}\n\n{purpose}\n\n| | |\n|---|---|\n{table}"


if __name__ == "__main__":
    page = HEAD + "".join(
        section(path.parent) for home in HOMES for path in sorted((ROOT / home).glob("*/__init__.py"))
    )
    if "--check" not in sys.argv[1:]:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        sys.exit(f"{shown(PAGE)} is out of date: run `make docs`")
