"""The house rules: packages as declared, arrows between folders, what stays importable without what."""

import ast
import io
import re
import runpy
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from splitfuse.server.extension import Extension, declared

ROOT = Path(__file__).parents[1]
# What a package may import; the base of all errors stands in the package itself.
PACKAGES = {
    "server": {"engine", "client"},
    "engine": {"kernels", "SplitfuseError"},
    "kernels": set(),
    "client": {"SplitfuseError"},
}
# Nothing below these folders may import torch; what stands in them can be tested in milliseconds.
NO_TORCH = {
    "engine/config": ["torch", "numpy", "transformers"],
    "engine/core": ["torch", "numpy", "transformers"],
    "engine/extras/simulation": ["torch", "numpy", "transformers"],
    "engine/language/chat": ["torch", "numpy", "transformers"],
    "server": ["torch", "transformers"],
    "client": ["torch", "fastapi", "splitfuse.engine", "splitfuse.server"],
}
# Folders of tests/ that hold to the rule of tests/README.md.
MIRRORS = ["engine", "server/commands", "server/http", "server/jobs", "server/process"]
# Rooms of the server whose folders declare an Extension and can be deleted: only they import from each other.
DELETABLE = ("apis", "results", "extras")
# Most lines of code, that is lines with a token that is no docstring and no comment. Whoever raises a row says in the
# commit what went for it. The extras of the engine, and the deletable folders of the server, have AN_EXTRA each.
BUDGETS = {
    "engine/core": 2200,
    "the engine without its core and its extras": 17726,
    "the server without its deletable folders": 7700,
    "kernels": 6850,
    "client": 2320,
}
AN_EXTRA = 600
LARGER = {
    "engine/extras/disk_cache": (1016, "an index, a writer and block managers that survive a crash"),
    "engine/extras/inspection": (560, "words for each decision of the scheduler"),
    "engine/extras/lora": (625, "adapters come, go and are read again while requests run"),
    "engine/extras/pooling": (955, "encoders are models of their own"),
    "engine/extras/receipts": (669, "a canonical form and a verifier"),
    "engine/extras/simulation": (748, "recordings, their replay and their pictures"),
    "engine/extras/spec_decode": (1120, "four drafters and their settings"),
    "server/api/chat": (935, "conversations, tools and checks of answers, for all dialects"),
    "server/apis/openai": (756, "the API that most clients use, and chats that are kept"),
    "server/apis/responses": (765, "a dialect with items, events and stored answers"),
    "server/extras/fronts": (1000, "a link, the engine's process, a mirror of its core, requests that outlive a kill"),
    "server/extras/replicas": (770, "HAProxy, Ray and the supervision of servers"),
    "server/extras/router": (1230, "turns of models, their processes, and each byte that passes between"),
    "server/results/batches": (1061, "uploads, and jobs that survive a restart, with shares of their bytes"),
    "server/results/durable": (1720, "a store that no kill -9 may cost a result, both stores' statements, copies"),
    "server/results/shared": (693, "leases and takeover between servers"),
}
ALL_PYTHON = 57060
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
# Modules that are imported after asking if the extra that they need is there.
ASK_FIRST = {"splitfuse.server.apis.ollama.embedding"}
CORE_FLOOR = {"core", "config", "errors", "checks"}  # rooms of engine/ that the core may import
ROOMS = {"engine": (14, 48), "server": (25, 97)}  # most rooms, and most arrows between them
MAX_LAYERS = 10  # most rooms of the engine on one way down


def sources(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "examples" not in path.parts]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["splitfuse", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def modules_of(folder: str) -> list[str]:
    return [module_name(path) for path in sources(folder) if path.stem != "__main__"]


@cache
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
    """Neither between modules nor between rooms (a folder of engine/ or server/, or a file beside them), nor between
    the folders that can be deleted.
    """
    modules = imports()
    TopologicalSorter(modules).prepare()
    for depth in (3, 4):
        rooms: dict[str, set[str]] = {}
        for name, targets in modules.items():
            if depth == 3 or name.split(".")[2:3] in ([room] for room in DELETABLE):
                room = ".".join(name.split(".")[:depth])
                rooms.setdefault(room, set()).update(".".join(target.split(".")[:depth]) for target in targets)
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


def num_code_lines(path: Path) -> int:
    """Number of lines with code: tokens that are neither comments nor docstrings."""
    text = path.read_text()
    skipped = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - skipped)


def code_by_room() -> tuple[dict[str, int], dict[str, int]]:
    """Lines of code by row of BUDGETS, and by extra."""
    rooms, extras = dict.fromkeys(BUDGETS, 0), Counter[str]()
    for path in (path for folder in PACKAGES for path in sources(folder)):
        parts, num_lines = path.relative_to(ROOT).parts, num_code_lines(path)
        if (parts[1] in DELETABLE and len(parts) > 3) or parts[:3] == ("server", "api", "chat"):
            extras["/".join(parts[:3])] += num_lines
        elif parts[:2] == ("engine", "core"):
            rooms["engine/core"] += num_lines
        elif parts[0] in ("engine", "server"):
            beside = "core and its extras" if parts[0] == "engine" else "deletable folders"
            rooms[f"the {parts[0]} without its {beside}"] += num_lines
        else:
            rooms[parts[0]] += num_lines
    return rooms, extras


def test_a_room_keeps_to_its_budget() -> None:
    rooms, extras = code_by_room()
    print(*(f"{num:7,} of {BUDGETS[room]:6,}  {room}" for room, num in rooms.items()), sep="\n")
    print(*(f"{num:7,} of {LARGER.get(extra, (AN_EXTRA,))[0]:6,}  {extra}" for extra, num in extras.items()), sep="\n")
    assert {room: num for room, num in rooms.items() if num > BUDGETS[room]} == {}
    assert {extra: num for extra, num in extras.items() if num > LARGER.get(extra, (AN_EXTRA,))[0]} == {}
    assert LARGER.keys() <= extras.keys(), "a row of a folder that is gone"
    assert sum(rooms.values()) + sum(extras.values()) <= ALL_PYTHON


def test_a_file_of_the_core_is_read_in_one_sitting() -> None:
    long = {path.name: num for path in sources("engine/core") if (num := len(path.read_text().splitlines())) > 360}
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
    """Rooms of a package and the rooms that each imports; folders of the server's extras are rooms of their own."""
    rooms: dict[str, set[str]] = runpy.run_path(str(ROOT / "tests/tools/rooms.py"))["rooms"](
        package, inside=package == "server"
    )
    return rooms


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


def test_the_server_reaches_its_extensions_by_name_alone() -> None:
    """`Extension` declarations name code; nothing outside the deletable rooms imports from them."""
    homes = tuple(f"splitfuse.server.{room}" for room in DELETABLE)
    for name, targets in imports().items():
        if name.split(".")[1] == "server" and name.split(".")[2:3] not in [[room] for room in DELETABLE]:
            assert not [target for target in targets if target.startswith(homes)], name


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
    """An afternoon's work: what it names exists, and the lines that it tells are its own."""
    section = (ROOT / "ARCHITECTURE.md").read_text().partition("## The reading path\n")[2].partition("\n## ")[0]
    path = re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.MULTILINE)
    assert len(set(path)) == len(re.findall(r"^\d+\. ", section, re.MULTILINE)) == 17


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
