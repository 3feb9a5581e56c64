"""Rooms, arrows and upward arrows of the server and the engine, by imports: `python tests/tools/rooms.py [--arrows]`.

A room is a folder of the package or a file beside the folders, if it imports or is imported; the package's own
`__init__` is one, too. An arrow goes from a room to one that it imports. An arrow is upward if it closes a circle: the
fewest arrows whose removal leaves none. At 3de4493c: server 39 / 181 / 2 with each extra a room, engine 12 / 37 / 0.
"""

import argparse
import ast
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Rooms of a package whose folders count as rooms of their own, if they are to count.
DEEP = {"extras"}


def imports(package: str) -> dict[str, set[str]]:
    """Return the modules of the same package that each module imports, wherever in the file."""
    files = [path for path in sorted((ROOT / package).rglob("*.py")) if "examples" not in path.parts]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    arrows: dict[str, set[str]] = {}
    for name, path in modules.items():
        parents = name.split(".")[:-1]
        targets = set[str]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(parents):
                base = ".".join([*parents[: len(parents) + 1 - node.level], *filter(None, [node.module])])
                targets |= {full if (full := f"{base}.{alias.name}") in modules else base for alias in node.names}
        arrows[name] = {target for target in targets if target.partition(".")[0] == package}
    return arrows


def rooms(package: str, *, inside: bool) -> dict[str, set[str]]:
    """Return the rooms that each room of the package imports. `inside`: folders of extras are rooms of their own."""

    def room(module: str) -> str:
        parts = module.removesuffix(".__init__").split(".")[1:]
        depth = 2 if inside and parts and parts[0] in DEEP else 1
        return "/".join(parts[:depth]) or package

    found: dict[str, set[str]] = {}
    for module, targets in imports(package).items():
        found.setdefault(room(module), set()).update(map(room, targets))
    joined = {name for source, targets in found.items() if targets - {source} for name in (source, *targets)}
    return {name: targets - {name} for name, targets in found.items() if name in joined}


def upward(arrows: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the fewest arrows without which no circle is left; up to three are searched for."""
    pairs = [(source, target) for source, targets in arrows.items() for target in targets]
    for number in range(4):
        for cut in combinations(_in_circles(arrows, pairs), number):
            if not _has_circle(
                {source: targets - {t for s, t in cut if s == source} for source, targets in arrows.items()}
            ):
                return sorted(cut)
    raise AssertionError("more than three arrows go upward")


def _in_circles(arrows: dict[str, set[str]], pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Arrows whose target leads back to their source: the others close no circle."""

    def reached(name: str) -> set[str]:
        seen, left = set[str](), [name]
        while left:
            if (at := left.pop()) not in seen:
                seen.add(at)
                left += arrows.get(at, ())
        return seen

    return [(source, target) for source, target in pairs if source in reached(target)]


def _has_circle(arrows: dict[str, set[str]]) -> bool:
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError:
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arrows", action="store_true", help="list the arrows, too")
    args = parser.parse_args()
    for package, inside in [("server", True), ("server", False), ("engine", False), ("engine", True)]:
        arrows = rooms(package, inside=inside)
        above = upward(arrows)
        name = f"{package}{', each extra a room' if inside else ''}"
        print(f"{name}: {len(arrows)} rooms, {sum(map(len, arrows.values()))} arrows, {len(above)} upward", *above)
        if args.arrows:
            for source in sorted(arrows):
                print(f"  {source} -> {' '.join(sorted(arrows[source]))}")


if __name__ == "__main__":
    main()
