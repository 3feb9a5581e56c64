"""Writes server/docs/internals/extras.md: a table of all extras, then a section for each, from the sources.

Reads sources only, so it needs no package. `--check` writes nothing and fails if the page is out of date.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "server/docs/internals/extras.md"
HOMES = ("engine/extras", "server/apis", "server/results", "server/extras")
ROUNDING = 50  # lines, so that a small edit does not change the page
HEAD = f"""# Find an extra: its size, its settings, and the place where it plugs in

An extra is a folder that can be deleted; the rest still answers. `tests/engine/behaviour/test_removal.py` and
`tests/server/behaviour/test_removal.py` delete each in turn. Extras of the engine declare an `EngineExtension`, those
of the server an `Extension`; parts load some modules by name. `server/docs/extending.md` adds both from another
package.

`make docs` writes this page from the sources; `server/docs/reference.md` explains the settings. An extra without the
row `used` is always used. Lines are rounded to {ROUNDING}. Packages are those that only extras import. Tests are the
extra's folder of tests, behaviour tests that bear its name, and tests that import it.
"""
# Fields of an extension that name code, and the meaning of the code.
PLUGS = {
    "router": "routes",
    "error_form": "form of errors below its paths",
    "answer_check": "check of complete answers",
    "index": "answer to a browser that opens /",
    "is_open": "paths that need no key",
    "serve": "runs `splitfuse serve` in place of one server",
    "part": "state",
    "decoder": "classes of decoders, by architecture",
    "decoder_wrapper": "wrapper of the class of decoders",
}
TABLES = {
    "endpoints": "answers lines of batches for {}",
    "kept_kinds": "takes up kept requests of the kind {}",
    "calls": "method {} of LLM",
    "keywords": "keyword {} of LLM.generate and LLM.chat",
}


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
def extras() -> list[Path]:
    return [path.parent for home in HOMES for path in sorted((ROOT / home).glob("*/__init__.py"))]


@cache
def walked(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def calls(path: Path) -> list[ast.Call]:
    return [node for node in walked(path) if isinstance(node, ast.Call)]


@cache
def named_calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Calls of a module, and the source of the first argument of each."""
    return [(ast.unparse(call.args[0]), call) for call in calls(path) if call.args]


@cache
def classes_in(path: Path) -> list[ast.ClassDef]:
    return [node for node in walked(path) if isinstance(node, ast.ClassDef)]


def classes(paths: list[Path]) -> list[ast.ClassDef]:
    return [node for path in paths for node in classes_in(path)]


def is_of_engine(extra: Path) -> bool:
    return extra.parts[-3] == "engine"


def packages(paths: list[Path]) -> set[str]:
    """Top-level names of other packages that these modules import."""
    names = {name for path in paths for name in imported(path)}
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"splitfuse"}


@cache
def imported(path: Path) -> set[str]:
    """Modules that this module imports by their full names."""
    imports = [alias.name for node in walked(path) if isinstance(node, ast.Import) for alias in node.names]
    sources = [node.module for node in walked(path) if isinstance(node, ast.ImportFrom) and not node.level]
    return {str(name) for name in (*imports, *sources)}


def loads(extra: Path) -> list[str]:
    """Parts that load modules of the engine's extra by name, with the settings or fields that ask for them."""
    dotted = re.compile(rf"'{extra.name}\.([\w.]+)'")
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in parts():
        for argument, call in named_calls(path):
            if name := dotted.fullmatch(argument):
                reasons = [item.value.value for item in call.keywords if isinstance(item.value, ast.Constant)]
                names = found[shown(path), str(next(filter(None, reasons), ""))]
                names += [f"`{name[1]}`"] * (f"`{name[1]}`" not in names)
    return [
        f"`{path}` loads {', '.join(names)}" + f" for {reason}" * bool(reason)
        for (path, reason), names in found.items()
    ]


def commands(extra: Path) -> list[str]:
    """Modules of the server, outside of extras, that import the engine's extra."""
    imported = re.compile(rf"\bengine\.extras\.{extra.name}\b")
    return [f"`{shown(path)}`" for path in parts() if imported.search(path.read_text(encoding="utf-8"))]


@cache
def extension(extra: Path) -> dict[str, ast.expr]:
    """Fields of the EXTENSION that an extra declares."""
    kinds = ("Extension", "EngineExtension")
    found = [call for call in calls(extra / "__init__.py") if ast.unparse(call.func) in kinds]
    return {str(item.arg): item.value for call in found for item in call.keywords}


def constant(extra: Path, name: str) -> list[str]:
    """Strings of a field that is a tuple."""
    node = extension(extra).get(name)
    return [f"`{item}`" for item in ast.literal_eval(node)] if node is not None else []


def dependants(extra: Path) -> list[str]:
    """Extras of the server that are not served without this one."""
    return [f"`{shown(other)}`" for other in extras() if f"`{shown(extra)}`" in constant(other, "requires")]


def settings(extra: Path) -> Iterator[str]:
    path = extra / "settings.py"
    for node in walked(path if path.exists() else extra / "__init__.py"):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call) and isinstance(node.target, ast.Name):
            yield f"`--{node.target.id.replace('_', '-')}`"


def condition(extra: Path) -> list[str]:
    """Condition on the settings under which the extra is used, unless it always is."""
    node = extension(extra).get("is_used")
    return [f"if `{ast.unparse(node.body)}`"] if isinstance(node, ast.Lambda) else []


def plugs(extra: Path) -> Iterator[str]:
    """Code that the EXTENSION names, with the file that has it."""
    fields = extension(extra)
    for name, meaning in PLUGS.items():
        if name in fields:
            yield f"{place(extra, ast.literal_eval(fields[name]))}: {meaning}"
    for name, meaning in TABLES.items():
        for key, reference in ast.literal_eval(fields[name]).items() if name in fields else ():
            yield f"{place(extra, reference)}: {meaning.format(f'`{key}`')}"


def place(extra: Path, reference: str) -> str:
    module, _, name = reference.partition(":")
    return f"`{name}` in `{shown(extra)}/{module.replace('.', '/')}.py`"


@cache
def methods(node: ast.ClassDef) -> set[tuple[str, int, str]]:
    """Name, number of positional arguments and keyword-only arguments of each method."""
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {(item.name, len(item.args.args), " ".join(arg.arg for arg in item.args.kwonlyargs)) for item in functions}


def ports(extra: Path) -> list[str]:
    """Ports of the extra's package, outside of extras, and the classes of the extra that implement them.

    A class implements a Protocol if it has all methods, and a class of ports.py, extension.py or a backend if it is
    derived from it.
    """
    top = [path for path in parts() if path.relative_to(ROOT).parts[0] == extra.parts[-3]]
    own = classes(modules(shown(extra)))
    bases = {node.name for node in classes([path for path in top if path.name in ("ports.py", "result_backend.py")])}
    found: dict[str, list[str]] = defaultdict(list)
    for port in classes(top):
        is_protocol = "Protocol" in map(ast.unparse, port.bases) and methods(port)
        for node in own:
            is_derived = port.name in bases and port.name in map(ast.unparse, node.bases)
            if is_derived or (is_protocol and methods(port) <= methods(node)):
                found[port.name].append(f"`{node.name}`")
    return [f"`{port}` by {', '.join(names)}" for port, names in found.items()]


def tests(extra: Path) -> list[str]:
    folder, words = ROOT / "tests" / shown(extra), "|".join(word[:4] for word in extra.name.split("_"))
    imported = re.compile(rf"splitfuse\.{shown(extra).replace('/', '.')}\b")
    bearing = re.compile(rf"tests/{extra.parts[-3]}/behaviour/test_(\w+_)?({words})\w*\.py")
    outside = [path for path in modules("tests") if path.name.startswith("test_") and folder not in path.parents]
    found = [path for path in outside if bearing.fullmatch(shown(path)) or imported.search(path.read_text())]
    return [f"`{shown(path)}`" for path in ([folder] if folder.is_dir() else []) + found]


@cache
def size(extra: Path) -> str:
    """Rounded number of lines."""
    files = [path for path in extra.rglob("*") if path.suffix in {".py", ".js", ".css", ".html"}]
    num_lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    return f"{max(1, round(num_lines / ROUNDING)) * ROUNDING:,}"


@cache
def purpose(extra: Path) -> str:
    return (extra / "__init__.py").read_text(encoding="utf-8").split('"""')[1].partition("\n")[0]


def overview() -> str:
    rows = [f"| [{shown(extra)}](#{anchor(extra)}) | {purpose(extra)} | {size(extra)} |\n" for extra in extras()]
    return "\n| extra | what it is | lines |\n|---|---|---:|\n" + "".join(rows)


def anchor(extra: Path) -> str:
    """Name that the heading of a section has on GitHub."""
    return shown(extra).replace("/", "")


def section(extra: Path) -> str:
    rows = {
        "used": condition(extra),
        "settings": [", ".join(settings(extra))] * any(settings(extra)),
        "paths": [", ".join(constant(extra, "paths"))] if constant(extra, "paths") else [],
        "loaded by": loads(extra) if is_of_engine(extra) else [],
        "used by commands": commands(extra) if is_of_engine(extra) else [],
        "plugs in": list(plugs(extra)),
        "implements": ports(extra),
        "needs": constant(extra, "requires"),
        "needed by": dependants(extra),
        "packages": sorted(packages(modules(shown(extra))) - packages(parts())),
        "tests": tests(extra),
    }
    table = "".join(f"| {name} | {'<br>'.join(lines)} |\n" for name, lines in rows.items() if lines)
    return f"\n## {shown(extra)}\n\n| | |\n|---|---|\n{table}"


if __name__ == "__main__":
    page = HEAD + overview() + "".join(map(section, extras()))
    if "--check" not in sys.argv[1:]:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        sys.exit(f"{shown(PAGE)} is out of date: run `make docs`")
