"""Wheel and sdist, as docker/wheel.py builds them: `make wheel`. MACHINE=aarch64 is a wheel for 64-bit Arm."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from splitfuse.kernels.cpu import prebuilt

MACHINE = os.environ.get("MACHINE", platform.machine())
ARM_PYTHON = os.environ.get("SPLITFUSE_TEST_ARM_PYTHON", "")
DIST = Path(os.environ.get("SPLITFUSE_TEST_DIST", "missing"))
pytestmark = pytest.mark.skipif(not DIST.is_dir(), reason="needs SPLITFUSE_TEST_DIST, a folder of docker/wheel.py")

# What manylinux_2_28 has: glibc 2.28 and gcc 8's runtime.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}


@pytest.fixture(scope="module")
def wheel() -> Path:
    (path,) = DIST.glob(f"splitfuse-*_{MACHINE}.whl")
    assert path.name.endswith(f"-py3-none-manylinux_2_28_{MACHINE}.whl")
    return path


def test_it_has_a_library_of_these_sources_for_each_class(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")}
    folder = "splitfuse/kernels/cpu/prebuilt"
    classes = [processors for processors in prebuilt.CLASSES if processors.machine == MACHINE]
    assert names == {f"{folder}/{prebuilt.file_name(processors)}" for processors in classes}


def test_the_libraries_need_no_newer_system_than_the_tag_says(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                path = Path(archive.extract(name, tmp_path))
                command = ["readelf", "--dyn-syms", "--wide", str(path)]
                symbols = subprocess.run(command, capture_output=True, text=True, check=True)
                versions = re.findall(r"\b(GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)", symbols.stdout)
                assert versions
                for kind, version in versions:
                    assert tuple(map(int, version.split("."))) <= NEWEST[kind], (name, kind, version)


def test_it_has_the_package_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"splitfuse", wheel.name.split("-py3")[0] + ".dist-info"}
    assert "splitfuse/py.typed" in names
    assert not [name for name in names if name.startswith(("splitfuse/tests", "splitfuse/docker"))]
    assert wheel.stat().st_size < 20 * 2**20


def test_links_of_its_description_are_absolute(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    links = [first or second for first, second in re.findall(r'\]\(([^)]+)\)|src(?:set)?="([^"]+)"', text)]
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_sdist_has_the_tests() -> None:
    (path,) = DIST.glob("splitfuse-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/conftest.py", "tests/docker/test_wheel.py", "Makefile", "constraints.txt"} <= names


@pytest.fixture(scope="module", params=["wheel", "checkout"])
def installed(wheel: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has the wheel or a checkout alone, beside a program of a user."""
    if platform.machine() != MACHINE:
        pytest.skip("needs a processor that the wheel is for")
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    words = [str(wheel)]
    if request.param == "checkout":
        root = Path(__file__).parents[2]
        subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{root}", folder / "checkout"], check=True)
        words = ["--config-settings=editable_mode=strict", "-e", str(folder / "checkout")]
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", *words], check=True)
    (folder / "user.py").write_text('from splitfuse import LLM\nreveal_type(LLM("demo").generate("x"))\n')
    return python


def said(command: list[str], python: Path) -> str:
    """Return what a type checker says of the user's program."""
    folder = python.parents[2]
    return subprocess.run([*command, "user.py"], cwd=folder, capture_output=True, text=True, check=False).stdout


def test_mypy_knows_the_answers(installed: Path) -> None:
    text = said([sys.executable, "-m", "mypy", "--python-executable", str(installed)], installed)
    assert re.search(r'Revealed type is "(builtins\.)?list\[splitfuse\.engine\.[\w.]+\.RequestOutput\]"', text), text


@pytest.mark.skipif(shutil.which("pyright") is None, reason="needs pyright: npm install pyright")
def test_pyright_knows_the_answers(installed: Path) -> None:
    text = said(["pyright", "--pythonpath", str(installed)], installed)
    assert 'is "list[RequestOutput]"' in text, text


# Compilers hidden in a namespace of their own; then what a newcomer types.
NEWCOMER = """set -eu
for file in /usr/bin/*gcc* /usr/bin/*g++* /usr/bin/cc /usr/bin/c++ /usr/bin/*clang*; do
  if [ -f "$file" ]; then mount --bind /dev/null "$(readlink -f "$file")"; fi
done
if c++ --version > compiler.txt 2>&1; then echo "a compiler is left" >&2; exit 1; fi
pipx install $PIPX_ARGS "$WHEEL"
bin/splitfuse generate demo -p "Once upon a time" -n 8
"""


@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("pipx") is None or shutil.which("unshare") is None, reason="needs pipx and unshare")
def test_pipx_brings_a_first_answer_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    """SPLITFUSE_TEST_PIPX_ARGS: more for pipx, as --pip-args="-c constraints.txt"."""
    if platform.machine() != MACHINE:
        pytest.skip("needs a processor that the wheel is for")
    own = {"HOME": str(tmp_path), "XDG_CACHE_HOME": f"{tmp_path}/cache", "PIPX_HOME": f"{tmp_path}/pipx"}
    own |= {"PIPX_BIN_DIR": f"{tmp_path}/bin", "WHEEL": str(wheel.resolve())}
    own |= {"PIPX_ARGS": os.environ.get("SPLITFUSE_TEST_PIPX_ARGS", "")}
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-c", NEWCOMER],
        cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Once upon a time" in done.stdout or len(done.stdout.splitlines()[-1]) > 10
    assert "building" not in done.stderr
    assert not list(tmp_path.glob("cache/splitfuse/native/*.so")), "nothing was compiled"


@pytest.mark.skipif(
    MACHINE != "aarch64" or not ARM_PYTHON,
    reason="needs SPLITFUSE_TEST_ARM_PYTHON, a Python for Arm that has the dependencies and runs here, by qemu-aarch64",
)
def test_arm_answers_like_this_machine(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    arguments = ["-m", "splitfuse", "generate", "demo", "-p", "Once upon", "-n", "8", "--temperature", "0"]
    path = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('SPLITFUSE_TEST_ARM_PATH', '')}"}
    arm = subprocess.run(
        [ARM_PYTHON, *arguments], env={**os.environ, **path}, capture_output=True, text=True, check=False
    )
    here = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
    assert arm.stdout == here.stdout != ""
    assert "CPU library" not in arm.stderr  # that it cannot be used
