"""The house rules: packages as declared, arrows between folders, what stays importable without what."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from splitfuse.server.extension import Extension, declared

ROOT = Path(__file__).parents[1]
PACKAGES = {"server": {"engine", "client"}, "engine": {"kernels"}, "kernels": set(), "client": set()}
# Nothing below these folders may import torch; what stands in them can be tested in milliseconds.
NO_TORCH = {
    "engine/config": ["torch", "numpy", "transformers"],
    "engine/core": ["torch", "numpy", "transformers"],
    "engine/extras/simulation": ["torch", "numpy", "transformers"],
    "engine/language/chat": ["torch", "numpy", "transformers"],
    "server": ["torch", "transformers"],
    "client": ["torch", "fastapi", "splitfuse.engine", "splitfuse.server"],
}
MAX_MODULES = 16
# Folders of tests/ that hold to the rule of tests/README.md.
MIRRORS = ["engine", "server/commands", "server/http", "server/jobs", "server/process"]
# A family, a style of tool calls; the core is one room on purpose: the list of its files is the reading list.
ONE_FILE_EACH = {"engine/execution/models", "engine/language/chat/tool_parsers", "engine/core"}
# Files and lines that a module imports, its own included, and theirs; imports within functions do not count.
CLOSURES = {
    "splitfuse.engine.core.engine_core": (22, 3270),
    "splitfuse.engine.core.step_pipeline": (24, 3500),
    "splitfuse.server.api.native.routes": (45, 4800),
}
# Modules that are imported after asking if the extra that they need is there.
ASK_FIRST = {
    "splitfuse.server.apis.ollama.embedding",
    "splitfuse.server.results.batches.part",
}
CORE_FLOOR = {"core", "config", "errors", "checks"}  # rooms of engine/ that the core may import
ROOMS = {"engine": (12, 45), "server": (16, 45)}  # most rooms, and most arrows between them
MAX_LAYERS = 9  # most rooms of the engine on one way down


def sources(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "examples" not in path.parts]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["splitfuse", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def modules_of(folder: str) -> list[str]:
    return [module_name(path) for path in sources(folder) if path.stem != "__main__"]


def imports() -> dict[str, set[str]]:
    """Our modules that each of our modules imports, wherever in the file, for the type checker too."""
    paths = {module_name(path): path for folder in PACKAGES for path in sources(folder)}
    arrows: dict[str, set[str]] = {}
    for name, path in paths.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        arrows[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = ".".join(package[: len(package) + 1 - node.level] + ([node.module] if node.module else []))
                arrows[name] |= {full if (full := f"{base}.{a.name}") in paths else base for a in node.names}
        arrows[name] -= {name}
    return arrows


def test_imports_have_no_circle() -> None:
    """Neither between modules nor between rooms: a folder of engine/ or server/ is a room, a file beside them too."""
    modules = imports()
    TopologicalSorter(modules).prepare()
    rooms: dict[str, set[str]] = {}
    for name, targets in modules.items():
        room = ".".join(name.split(".")[:3])
        rooms.setdefault(room, set()).update(".".join(target.split(".")[:3]) for target in targets)
    TopologicalSorter({room: targets - {room} for room, targets in rooms.items()}).prepare()


def test_cpp_includes_have_no_circle() -> None:
    includes = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
    files = {path.name: path.read_text() for path in (ROOT / "kernels/cpu/csrc").glob("*.[ch]*")}
    arrows = {name: set(includes.findall(text)) for name, text in files.items()}
    assert set().union(*arrows.values()) <= set(files), "a header is included under a path that this test cannot follow"
    TopologicalSorter(arrows).prepare()


def folders_needed(folder: str) -> set[str]:
    """Deletable folders that this one imports, those of the engine with what they import in turn. An extra that is
    loaded by name counts unless its module asks `has_extra` first.
    """
    paths = {module_name(path): path for path in (*sources("server"), *sources("engine"))}
    deletable = {extension.folder for extension in declared()} | {
        f"engine/extras/{path.parent.name}" for path in (ROOT / "engine/extras").glob("*/__init__.py")
    }
    needed, left = set[str](), [folder]
    while left:
        for path in sources(left.pop()):
            name, text = module_name(path), path.read_text()
            found = {"/".join(target.split(".")[1:4]) for target in imports_at_load(name, paths, with_functions=True)}
            named = set(re.findall(r'load_extra\(\s*"(\w+)', text)) - set(re.findall(r'has_extra\("(\w+)', text))
            found |= {f"engine/extras/{extra}" for extra in named} if name.startswith("splitfuse.server") else set()
            if name not in ASK_FIRST:
                new = found & deletable - needed - {folder}
                needed |= new
                left += [other for other in new if other.startswith("engine")]
    return needed


@pytest.mark.parametrize("extension", declared(), ids=lambda extension: extension.name)
def test_an_extension_requires_the_folders_that_it_imports(extension: Extension) -> None:
    required, left = set[str](), [extension]
    while left:
        new = set(left.pop().requires) - required
        required |= new
        left += [other for other in declared() if other.folder in new]
    assert folders_needed(extension.folder) - required == set()
    assert [folder for folder in extension.requires if not (ROOT / folder).is_dir()] == []


def closure(module: str) -> set[str]:
    """Every module of ours that comes in with an import of this one."""
    paths = {module_name(path): path for folder in PACKAGES for path in sources(folder)}
    found, left = set[str](), [module]
    while left:
        name = left.pop()
        if name in paths and name not in found:
            found.add(name)
            left += imports_at_load(name, paths)
    return found


def imports_at_load(name: str, paths: dict[str, Path], *, with_functions: bool = False) -> set[str]:
    package = name.split(".") if paths[name].name == "__init__.py" else name.split(".")[:-1]
    targets = set[str]()
    left: list[ast.AST] = [ast.parse(paths[name].read_text())]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not with_functions:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join(package[: len(package) + 1 - node.level] + ([node.module] if node.module else []))
            targets |= {full if (full := f"{base}.{a.name}") in paths else base for a in node.names}
        left += ast.iter_child_nodes(node)
    return targets


@pytest.mark.parametrize("module", CLOSURES)
def test_the_core_stays_small(module: str) -> None:
    paths = {module_name(path): path for folder in PACKAGES for path in sources(folder)}
    names = closure(module)
    num_lines = sum(len(paths[name].read_text().splitlines()) for name in names)
    most_files, most_lines = CLOSURES[module]
    assert len(names) <= most_files, sorted(names)
    assert num_lines <= most_lines


def test_a_file_of_the_core_is_read_in_one_sitting() -> None:
    long = {path.name: num for path in sources("engine/core") if (num := len(path.read_text().splitlines())) > 250}
    assert not long


def test_the_core_imports_its_floor_alone() -> None:
    """The type checker's imports count, too."""
    for name, targets in imports().items():
        if name.startswith("splitfuse.engine.core."):
            assert {target.split(".")[2] for target in targets} <= CORE_FLOOR, name


def test_parts_reach_extras_by_name_alone() -> None:
    """`load_extra` finds them; only the package's own names (engine/__init__.py) are those of an extra."""
    for name, targets in imports().items():
        parts = name.split(".")
        if parts[1] == "engine" and parts[2:3] not in ([], ["extras"]):
            assert not [target for target in targets if target.startswith("splitfuse.engine.extras")], name


def rooms_of(package: str) -> dict[str, set[str]]:
    """Rooms of a package and the rooms that each imports: a folder is a room, a file beside the folders too."""
    rooms: dict[str, set[str]] = {}
    beginning = f"splitfuse.{package}."
    for name, targets in imports().items():
        if name.startswith(beginning):
            room = name.split(".")[2]
            rooms.setdefault(room, set()).update(
                target.split(".")[2] for target in targets if target.startswith(beginning)
            )
    return {room: targets - {room} for room, targets in rooms.items()}


@pytest.mark.parametrize("package", ROOMS)
def test_a_package_has_few_rooms(package: str) -> None:
    rooms = rooms_of(package)
    most_rooms, most_arrows = ROOMS[package]
    assert len(rooms) <= most_rooms, sorted(rooms)
    assert sum(map(len, rooms.values())) <= most_arrows


def test_the_engine_has_few_layers() -> None:
    rooms = rooms_of("engine")
    layers: dict[str, int] = {}
    for room in TopologicalSorter(rooms).static_order():
        layers[room] = 1 + max((layers[target] for target in rooms.get(room, ())), default=0)
    assert max(layers.values()) <= MAX_LAYERS


def test_the_server_reaches_its_extras_by_name_alone() -> None:
    """`Extension` declarations name code; nothing outside server/extras imports from it."""
    for name, targets in imports().items():
        if name.startswith("splitfuse.server.") and not name.startswith("splitfuse.server.extras"):
            assert not [target for target in targets if target.startswith("splitfuse.server.extras")], name


def test_folders_stay_small() -> None:
    for folder in {path.parent for name in PACKAGES for path in sources(name)}:
        if str(folder.relative_to(ROOT)) not in ONE_FILE_EACH:
            modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
            assert len(modules) <= MAX_MODULES, f"{folder} holds {len(modules)} modules: give some a folder"


def test_declared_packages_are_the_ones_on_disk() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for name in PACKAGES for path in sources(name)}
    assert set(declared) == {"splitfuse"} | {"splitfuse." + ".".join(folder.parts) for folder in folders}


@pytest.mark.parametrize("folder", MIRRORS)
def test_a_test_file_is_named_after_a_module_or_stands_in_behaviour(folder: str) -> None:
    tests = ROOT / "tests"
    for path in (path for path in (tests / folder).rglob("test_*.py") if path.parent.name != "behaviour"):
        module = ROOT / path.parent.relative_to(tests) / f"{path.stem.removeprefix('test_')}.py"
        assert module.exists(), f"{path}: there is no {module}; rename it, or move it to a folder `behaviour`"


def test_no_init_where_it_would_shadow() -> None:
    assert not (ROOT / "kernels/__init__.py").exists(), "from the root it would hide Hugging Face's `kernels`"
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("folder", PACKAGES)
def test_imports_inside_are_relative_and_point_down(folder: str) -> None:
    for path in sources(folder):
        depth = len(path.relative_to(ROOT).parts) - 1
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("splitfuse") for alias in node.names), path
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("splitfuse"), f"{path}: use relative imports"
                if node.level > depth:
                    target = (node.module or node.names[0].name).split(".")[0]
                    assert target in PACKAGES[folder], f"{path} must not import {target}"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        *[
            ([module_name(path) for path in sources(folder) if path.stem != "__main__"], absent)
            for folder, absent in NO_TORCH.items()
        ],
        (["splitfuse.server.commands.command_line"], ["torch", "transformers", "fastapi"]),
        # `serve` handles signals after these imports: 0.06 s; with argparse and the settings they took 0.2 s.
        (["splitfuse.server.cli"], ["argparse", "logging", "dataclasses", "splitfuse.server.settings"]),
        (
            ["splitfuse.engine.serving.async_engine", "splitfuse.engine.serving.llm"],
            ["fastapi", "pydantic", "uvicorn", "transformers", "triton"],
        ),
        (["splitfuse.kernels.cpu.backend"], ["triton"]),
    ],
)
def test_what_an_import_brings_along(modules: list[str], absent: list[str]) -> None:
    program = f"import sys, {', '.join(modules)}; print([m for m in {absent} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", modules


def test_no_pickle_and_no_remote_code() -> None:
    forbidden = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    for path in (path for folder in PACKAGES for path in sources(folder)):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & forbidden, path
        assert not re.search(r"trust_remote_code\s*=|torch\.load\(", text), path


def test_every_module_says_what_it_knows() -> None:
    for path in (path for folder in PACKAGES for path in sources(folder)):
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring, f"{path} has no docstring"
        assert len(docstring.splitlines()) <= 20, path


@pytest.mark.parametrize(
    "document",
    [
        *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "server/API.md"),
        *("tests/README.md", "tests/bench/RESULTS.md"),
        *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "server/docs").rglob("*.md"))),
    ],
)
def test_every_file_and_make_target_that_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    named = re.findall(r"(?<![\w/.:-])((?:client|docker|engine|kernels|server|tests)/[\w./-]*\w)(?![\w<])", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert named or not document.startswith("server/docs/internals")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= set(targets)


def test_the_reading_path_is_short() -> None:
    """An afternoon's work, and every file of it exists."""
    section = (ROOT / "ARCHITECTURE.md").read_text().partition("## The reading path\n")[2].partition("\n## ")[0]
    path = re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.MULTILINE)
    assert len(set(path)) == len(re.findall(r"^\d+\. ", section, re.MULTILINE)) == 17
    assert sum(len((ROOT / name).read_text().splitlines()) for name in path) <= 3000


def test_the_map_names_every_folder() -> None:
    shown = (ROOT / "ARCHITECTURE.md").read_text().partition("## Map\n")[2].partition("\n## ")[0]
    folders = {path.relative_to(ROOT).parts[:-1] for name in PACKAGES for path in sources(name)}
    assert {"/".join(parts) for parts in folders if f"{parts[min(1, len(parts) - 1)]}/" not in shown} == set()


def test_every_module_that_the_code_names_exists() -> None:
    """In docstrings and comments, where names outlive files."""
    paths = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    modules = {path.name for path in (*paths, *(ROOT / "tests").rglob("*.py"))}
    named = {(path.name, name) for path in paths for name in re.findall(r"\b\w+\.py\b", path.read_text())}
    assert {pair for pair in named if pair[1] not in modules} == {("architectures.py", "convert_hf_to_gguf.py")}
