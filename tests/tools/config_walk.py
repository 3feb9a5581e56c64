"""Way of one value through the engine: files that `config` enters from `load` of engine/serving/builder.py.

`python tests/tools/config_walk.py [FILE:FUNCTION:PARAMETER]` follows every call that passes on the value or one derived
from it, in the order of the source. A stay is a run of entered functions of one file; a return is a stay in a file that
was left before. It reads the source alone: a call that it cannot resolve is not followed. At 3de4493c: 62 stays in 37
files, 25 returns, with each function entered once; 90 stays, 53 returns with all calls. (37 by another program.)
"""

import ast
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = "engine/serving/builder.py:load:config"


@dataclass(frozen=True)
class Place:
    """A function or a class in a file; the file itself without names."""

    path: Path
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{'.'.join(self.names)}"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def node_of(place: Place) -> ast.AST | None:
    node: ast.AST = tree(place.path)
    for name in place.names:
        found = [n for n in ast.iter_child_nodes(node) if getattr(n, "name", None) == name]
        if not found:
            return None
        node = found[-1]
    return node


def module_file(base: Path) -> Path | None:
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def resolve(path: Path, name: str) -> Place | None:
    """Find the definition of a module-level name, through imports anywhere in the file."""
    if node_of(Place(path, (name,))) is not None:
        return Place(path, (name,))
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1].joinpath(*(node.module or "").split(".") if node.module else ())
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    if (module := module_file(folder / alias.name)) is not None:
                        return Place(module, ())
                    target = module_file(folder)
                    return resolve(target, alias.name) if target is not None and target != path else None
    return None


def method(place: Place, name: str) -> Place | None:
    """Find a method in a class or in its base classes."""
    node = node_of(place)
    if not isinstance(node, ast.ClassDef):
        return None
    if node_of(found := Place(place.path, (*place.names, name))) is not None:
        return found
    bases = [resolve(place.path, base.id) for base in node.bases if isinstance(base, ast.Name)]
    return next((hit for base in bases if base is not None and (hit := method(base, name))), None)


class Walk:
    """Functions that the value enters, in their order."""

    def __init__(self, value_class: Place) -> None:
        self.entered: list[Place] = []
        self._value_class = value_class

    def enter(self, place: Place, parameter: str) -> None:
        node = node_of(place)
        if isinstance(node, ast.ClassDef):
            if (init := method(place, "__init__")) is not None:
                self.enter(init, parameter)
            return  # a dataclass: the value is put down
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_known = place in self.entered
            self.entered.append(place)
            if not is_known:
                self._follow(place, node, parameter)

    def _follow(self, place: Place, function: ast.FunctionDef | ast.AsyncFunctionDef, parameter: str) -> None:
        aliases = {parameter}
        for node in _in_order(function):
            if isinstance(node, ast.Assign) and self._is_value(node.value, aliases):
                aliases |= {
                    name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
                }
            if not isinstance(node, ast.Call):
                continue
            target = self._callee(place, node.func, aliases)
            if target is None:
                continue
            callee, bound = target
            for name in self._parameters(callee, node, aliases, bound=bound)[:1]:
                self.enter(callee, name)

    def _is_value(self, node: ast.AST, aliases: set[str]) -> bool:
        return any(isinstance(part, ast.Name) and part.id in aliases for part in ast.walk(node))

    def _callee(self, place: Place, func: ast.AST, aliases: set[str]) -> tuple[Place, bool] | None:
        """Find the definition that a call names; True if its first parameter is bound."""
        found: Place | None = None
        bound = False
        if isinstance(func, ast.Name):
            found = resolve(place.path, func.id)
            bound = isinstance(found and node_of(found), ast.ClassDef)
        elif isinstance(func, ast.Attribute):
            owner = func.value
            bound = True
            if isinstance(owner, ast.Name) and owner.id == "config":
                found = method(self._value_class, func.attr)
            elif isinstance(owner, ast.Name) and owner.id in ("self", "cls"):
                found = method(Place(place.path, place.names[:-1]), func.attr) if len(place.names) > 1 else None
            elif isinstance(owner, ast.Name) and (home := resolve(place.path, owner.id)) is not None:
                bound = bool(home.names)
                found = method(home, func.attr) if bound else resolve(home.path, func.attr)
        return (found, bound) if found is not None else None

    def _parameters(self, callee: Place, call: ast.Call, aliases: set[str], *, bound: bool) -> list[str]:
        """Names of the callee's parameters that receive the value."""
        node = node_of(callee)
        if isinstance(node, ast.ClassDef):
            init = method(callee, "__init__")
            node = node_of(init) if init is not None else node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
            names = names[1:] if bound and names[:1] in (["self"], ["cls"]) else names
        else:
            names = [item.target.id for item in getattr(node, "body", []) if isinstance(item, ast.AnnAssign)]  # type: ignore[union-attr]
        passed = [names[i] for i, arg in enumerate(call.args) if self._is_value(arg, aliases) and i < len(names)]
        return passed + [word.arg for word in call.keywords if word.arg and self._is_value(word.value, aliases)]


def _in_order(function: ast.AST) -> list[ast.AST]:
    """Statements and calls of a function as they are reached: the arguments of a call before the call."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.Call)]
    return sorted(nodes, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))


def stays(entered: list[Place]) -> list[Path]:
    """Return the files in which the value stays, one after the other."""
    files = [place.path for place in entered]
    return [path for before, path in zip([None, *files], files, strict=False) if path != before]


def walk(start: str = START) -> list[Place]:
    """Return the functions that the value enters. `start`: file, function, parameter."""
    file, function, parameter = start.split(":")
    path = ROOT / file
    found = Walk(Place(ROOT / "engine/config/engine_config.py", ("EngineConfig",)))
    found.enter(Place(path, tuple(function.split("."))), parameter)
    return found.entered


def main() -> None:
    entered = walk(*sys.argv[1:2])
    for place in entered:
        print(place)
    for what, places in [("each function once", list(dict.fromkeys(entered))), ("all calls", entered)]:
        files = stays(places)
        print(f"{what}: {len(files)} stays in {len(set(files))} files, {len(files) - len(set(files))} returns")


if __name__ == "__main__":
    main()
