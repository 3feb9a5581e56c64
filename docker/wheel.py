"""Build the wheel and the sdist: `python docker/wheel.py OUT`. The wheel has the CPU kernels for each class of x86-64.

`--machine aarch64` is for 64-bit Arm instead; elsewhere it needs its cross compiler (Debian: g++-aarch64-linux-gnu).
Needs g++ and the package `build`. A class that the compiler does not know fails the build. Works on a copy of what git
tracks, so that nothing else gets into the wheel; SOURCE_DATE_EPOCH is the commit's time unless it is set.
`--site FOLDER` has what `make docs` built, which a server shows at /docs/. Links of README.md become absolute.
"""

import argparse
import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The libraries need nothing newer than glibc 2.17 and gcc 7's libstdc++ (tests/docker/test_wheel.py); torch needs 2.28.
PLATFORM = "manylinux_2_28"
# attention_decode.cpp of a class of Arm takes g++ 12 157 s on a core of an EPYC, and 464 s beside other work.
COMPILER_LIMIT_S = 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--classes", nargs="*", help="build for these classes of processors only")
    parser.add_argument("--machine", choices=["x86_64", "aarch64"], default=platform.machine())
    parser.add_argument("--site", type=Path, help="folder of the built documentation")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="splitfuse-wheel-") as scratch:
        tree = Path(scratch, "tree")
        copy_tracked(tree)
        (tree / "MANIFEST.in").write_text("graft docker\ngraft tests\ninclude Dockerfile Makefile *.md *.txt\n")
        readme = tree / "README.md"
        readme.write_text(with_absolute_links(readme.read_text()))
        build("--sdist", tree, out)
        if arguments.site:
            pack(arguments.site, tree / "server/extras/site/site.zip")
        compile_classes(tree / "kernels/cpu/prebuilt", arguments.machine, arguments.classes)
        built = Path(scratch, "dist")
        build("--wheel", tree, built)
        (wheel,) = built.glob("*.whl")
        tag = f"--platform-tag={PLATFORM}_{arguments.machine}"
        run(sys.executable, "-m", "wheel", "tags", "--remove", tag, str(wheel))
        (wheel,) = built.glob("*.whl")
        shutil.copy(wheel, out)
    print(*sorted(out.glob("splitfuse-*")), sep="\n")


def copy_tracked(target: Path) -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.split("\0")[:-1]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def with_absolute_links(text: str) -> str:
    """Point links at the version's files in the repository, pictures at their contents."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = f"{project['urls']['Homepage']}/blob/v{project['version']}/"
    contents = files.replace("github.com", "raw.githubusercontent.com").replace("/blob/", "/")
    text = re.sub(r'(src(?:set)?="|!\[[^\]]*\]\()(?!\w+:)', rf"\1{contents}", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?![\w]+:|#)", rf"\1{files}", text)


def pack(folder: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix())  # without a time: equal pages, equal archive
            file.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, compresslevel=9)


def compile_classes(folder: Path, machine: str, wanted: list[str] | None) -> None:
    """Compile the library of each of the machine's classes into this folder.

    Does not import the package, which would need torch.
    """
    folder.mkdir()
    kernels = ROOT / "kernels/cpu"
    sys.path.insert(0, str(kernels.parent))
    package = sys.modules["cpu"] = type(sys)("cpu")
    package.__path__ = [str(kernels)]
    compilation, prebuilt = (importlib.import_module(f"cpu.{name}") for name in ("compilation", "prebuilt"))
    prefix = "" if machine == platform.machine() else f"{machine}-linux-gnu-"  # of Debian's cross compilers
    compiler = shutil.which(f"{prefix}g++") if prefix else compilation.find_compiler()
    if compiler is None:
        sys.exit(f"needs a C++ compiler: {prefix}g++")
    for processors in prebuilt.CLASSES:
        if processors.machine == machine and (wanted is None or processors.name in wanted):
            with tempfile.TemporaryDirectory() as scratch:
                options = processors.options
                library = compilation.compile_library(compiler, Path(scratch), options, limit_s=COMPILER_LIMIT_S)
                run(f"{prefix}strip", "--strip-unneeded", str(library))
                shutil.copy(library, folder / prebuilt.file_name(processors))


def build(kind: str, tree: Path, out: Path) -> None:
    run(sys.executable, "-m", "build", kind, f"--outdir={out}", str(tree))


def run(*command: str) -> None:
    subprocess.run(command, check=True, env={"SOURCE_DATE_EPOCH": commit_time(), **os.environ}, stdout=sys.stderr)


def commit_time() -> str:
    return subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
