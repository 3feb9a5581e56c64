"""Dockerfile: its properties that can be checked without a build."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from answering import answering, reply

from splitfuse.kernels.cpu import prebuilt

from .dockerfile import Instruction, Stage, ancestry, read_dockerfile

ROOT = Path(__file__).parents[2]
STAGES = read_dockerfile(ROOT / "Dockerfile")
TARGETS = ("cpu", "cuda", "native")
BUILDS = {"cpu": "cpu", "cuda": "cuda", "native": "cpu"}  # each target's packages-… and build-…
LOCK = ROOT / "docker/requirements.txt"
INSTALL = "docker/install_package.sh"


def last(target: str, name: str) -> Instruction:
    """Return the instruction that holds for the finished image."""
    return [found for stage in ancestry(STAGES, target) for found in stage.all(name)][-1]


def environment(target: str) -> dict[str, str]:
    """Return the image's environment variables."""
    pairs = [word for stage in ancestry(STAGES, target) for found in stage.all("ENV") for word in found.words]
    return dict(pair.split("=", 1) for pair in pairs)


def test_there_is_one_stage_for_each_target_and_cpu_is_the_default() -> None:
    names = [stage.name for stage in STAGES]
    assert len(set(names)) == len(names)
    assert set(TARGETS) <= set(names)
    assert names[-1] == "cpu"


def test_every_base_is_an_earlier_stage_or_the_pinned_slim_python() -> None:
    earlier: set[str] = set()
    for stage in STAGES:
        assert stage.base in earlier or stage.base == "${BASE}"
        earlier.add(stage.name)
    (version,) = re.findall(r"^ARG BASE=python:(\S+)-slim$", (ROOT / "Dockerfile").read_text(), re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={version}"


@pytest.mark.parametrize("target", TARGETS)
def test_it_runs_as_an_unprivileged_user(target: str) -> None:
    assert last(target, "USER").text == "10001:10001"
    stage = [stage for stage in ancestry(STAGES, target) if stage.all("USER")][-1]
    after = stage.instructions[stage.instructions.index(stage.all("USER")[-1]) :]
    assert not [found for found in after if found.name == "RUN"]


@pytest.mark.parametrize("target", TARGETS)
def test_it_starts_without_a_shell_and_stops_on_sigterm(target: str) -> None:
    assert last(target, "ENTRYPOINT").is_exec_form
    assert last(target, "ENTRYPOINT").words == ["splitfuse"]
    assert last(target, "CMD").is_exec_form
    assert last(target, "CMD").words == ["serve"]
    assert last(target, "STOPSIGNAL").text == "SIGTERM"
    assert last(target, "EXPOSE").text == "8000"


@pytest.mark.parametrize("target", TARGETS)
def test_everything_that_is_written_lies_on_the_volume(target: str) -> None:
    variables = environment(target)
    assert last(target, "VOLUME").words == ["/cache", "/results"]
    for name in ("HOME", "HF_HOME", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        assert Path(variables[name]).is_relative_to("/cache")
    assert variables["SPLITFUSE_HOST"] == "0.0.0.0"


@pytest.mark.parametrize(("target", "compiles"), [("cpu", False), ("cuda", True), ("native", True)])
def test_a_compiler_is_there_where_something_is_compiled(target: str, compiles: bool) -> None:
    commands = [found.text for stage in ancestry(STAGES, target) for found in stage.all("RUN")]
    assert any("g++" in command and "rm -rf /var/lib/apt/lists" in command for command in commands) == compiles
    assert (environment(target).get("SPLITFUSE_NATIVE") == "build") == (target == "native")


def stage_named(name: str) -> Stage:
    """Return the stage of that name."""
    return next(stage for stage in STAGES if stage.name == name)


def test_the_cpu_image_brings_the_kernels_of_every_class() -> None:
    kernels, build = stage_named("kernels"), stage_named("build-cpu")
    assert kernels.all("RUN")[-1].text == 'python docker/kernel_libraries.py /prebuilt --machine "$(cat machine)"'
    (copy,) = (found for found in build.all("COPY") if found.flags.get("from") == "kernels")
    assert copy.words == ["/prebuilt/", prebuilt.FOLDER.relative_to(prebuilt.FOLDER.parents[2]).as_posix() + "/"]
    (install,) = build.all("RUN")
    assert build.instructions.index(copy) < build.instructions.index(install)


def test_the_kernels_are_compiled_from_all_that_decides_their_names(tmp_path: Path) -> None:
    """A library of another name would not be found, and the image would run on torch's ops."""
    for copy in stage_named("kernels").all("COPY"):
        *sources, target = copy.words
        (tmp_path / target).mkdir(parents=True, exist_ok=True)
        for source in sources:
            if source.endswith("/"):
                shutil.copytree(ROOT / source, tmp_path / target, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, tmp_path / target)
    code = "from cpu import prebuilt; print(*map(prebuilt.file_name, prebuilt.CLASSES))"
    names = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path / "kernels", text=True).split()
    assert names == [*map(prebuilt.file_name, prebuilt.CLASSES)]


@pytest.mark.parametrize("target", TARGETS)
def test_labels_name_the_project(target: str) -> None:
    labels = dict(word.split("=", 1) for word in last(target, "LABEL").words)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert labels["org.opencontainers.image.title"] == project["name"]
    assert labels["org.opencontainers.image.licenses"] == project["license"]
    (version,) = (found.text for found in ancestry(STAGES, target)[0].all("ARG") if found.text.startswith("VERSION"))
    assert version == f"VERSION={project['version']}"


def test_a_release_builds_on_a_base_named_by_digest(tmp_path: Path) -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["image"]["steps"]
    names = [step.get("id") for step in steps]
    resolve, build = (steps[names.index(name)] for name in ("base", "build"))
    assert names.index("base") < names.index("build")
    assert "BASE=${{ steps.base.outputs.name }}" in build["with"]["build-args"].splitlines()
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho sha256:0123 "$4"\n')
    docker.chmod(0o755)
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    variables = {**os.environ, **files, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-e", "-c", resolve["run"]], cwd=ROOT, env=variables, check=True)
    for file in files.values():
        assert Path(file).read_text() == "name=python:3.11-slim@sha256:0123 python:3.11-slim\n"


def copies() -> list[tuple[Stage, Instruction]]:
    """Return every COPY of the file."""
    return [(stage, found) for stage in STAGES for found in stage.all("COPY")]


def test_nothing_is_added_from_the_network() -> None:
    assert not [found for stage in STAGES for found in stage.all("ADD")]


def test_every_source_exists_and_gets_past_dockerignore() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    sources = [word for _, found in copies() if "from" not in found.flags for word in found.words[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert not is_ignored(source.rstrip("/"), patterns)
    assert is_ignored(".git", patterns)
    assert is_ignored("tests", patterns)


def is_ignored(path: str, patterns: list[str]) -> bool:
    """True if Docker ignores a file or folder: the last pattern that matches it or a folder above it decides."""
    ignored = False
    names = [path, *map(str, Path(path).parents)]
    for pattern in patterns:
        if any(fnmatch(name, pattern.removeprefix("!")) for name in names):
            ignored = not pattern.startswith("!")
    return ignored


def test_every_package_is_copied_where_it_is_installed() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {"__init__.py" if folder == "." else folder.split("/")[0] for folder in setup["package-dir"].values()}
    for name in {*BUILDS.values()}:
        stage = stage_named(f"build-{name}")
        copied = {word.rstrip("/") for found in stage.all("COPY") for word in found.words[:-1]}
        assert folders | {"pyproject.toml", "README.md", "LICENSE", INSTALL} <= copied
        (install,) = stage.all("RUN")
        assert install.text == "sh install_package.sh /opt/package"


def test_all_but_torch_is_installed_by_hash() -> None:
    """Each build installs the lock, which has what pyproject.toml and constraints.txt ask for."""
    for build in {*BUILDS.values()}:
        of_torch, of_lock = (run.text for run in stage_named(f"packages-{build}").all("RUN"))
        assert re.search(r"pip install .* torch", of_torch)
        assert of_lock == "pip install --no-deps --require-hashes -r requirements.txt"
    script = (ROOT / INSTALL).read_text()
    assert re.search(r"^pip install --no-deps .*\.$.*^pip check$", script, re.M | re.S)
    entries = re.findall(r"^([\w-]+)==([^ ;]+).*\n((?: +--hash=sha256:[0-9a-f]{64}.*\n)*)", LOCK.read_text(), re.M)
    assert all(hashes for _, _, hashes in entries)
    assert len(entries) == len(re.findall(r"^\w", LOCK.read_text(), re.M))
    locked = {name: version for name, version, _ in entries}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["postgres"]]
    names = {re.split(r"[\[<>=]", need)[0].replace("_", "-") for need in wanted}
    assert names - {"torch"} <= locked.keys()
    pinned = re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    pinned = [(name.replace("_", "-"), version) for name, version in pinned]
    assert [(name, locked[name]) for name, version in pinned if locked.get(name, version) != version] == []


@pytest.mark.parametrize("target", TARGETS)
def test_the_finished_image_takes_its_packages_and_above_them_ours(target: str) -> None:
    packages, ours = (found for stage, found in copies() if stage.name == target)
    assert (packages.flags["from"], packages.words) == (f"packages-{BUILDS[target]}", ["/opt/venv", "/opt/venv"])
    assert (ours.flags["from"], ours.words) == (f"build-{BUILDS[target]}", ["/opt/package", "/opt/venv"])
    assert stage_named(ours.flags["from"]).base == packages.flags["from"]


@pytest.mark.parametrize(("status", "is_healthy"), [(200, True), (503, False), (404, False)])
def test_the_health_check_tells_a_healthy_server_from_a_sick_one(status: int, is_healthy: bool) -> None:
    instruction = last("cpu", "HEALTHCHECK")
    assert {"interval", "timeout", "start-period", "retries"} <= set(instruction.flags)
    keyword, _, command = instruction.text.partition(" ")
    assert keyword == "CMD"
    words = Instruction("CMD", {}, command.strip()).words
    assert words[0] == "python"
    with answering(lambda request: reply(request, status if request.path == "/health" else 404)) as url:
        variables = {**os.environ, "SPLITFUSE_PORT": url.rpartition(":")[2], "http_proxy": "http://127.0.0.1:9"}
        done = subprocess.run([sys.executable, *words[1:]], env=variables, capture_output=True, check=False)
    assert (done.returncode == 0) == is_healthy
