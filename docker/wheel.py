"""Build the wheel and the sdist: `python docker/wheel.py OUT`. The wheel has the CPU kernels for each class of x86-64.

`--machine aarch64` is for 64-bit Arm instead; elsewhere it needs its cross compiler (Debian: g++-aarch64-linux-gnu).
Needs g++ and the package `build`. A class that the compiler does not know fails the build. Works on a copy of what git
tracks, so that nothing else gets into the wheel; SOURCE_DATE_EPOCH is the commit's time unless it is set.
Links of README.md become absolute.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from kernel_libraries import compile_classes  # beside this file

ROOT = Path(__file__).resolve().parents[1]
# The libraries need nothing newer than glibc 2.17 and gcc 7's libstdc++ (tests/docker/test_wheel.py); torch needs 2.28.
PLATFORM = "manylinux_2_28"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--classes", nargs="*", help="build for these classes of processors only")
    parser.add_argument("--machine", choices=["x86_64", "aarch64"], default=platform.machine())
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
