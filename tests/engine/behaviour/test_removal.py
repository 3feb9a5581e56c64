"""Deleting any extra leaves an engine that answers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXTRAS = sorted(path.parent.name for path in (ROOT / "engine/extras").glob("*/__init__.py"))
GENERATE = """
from splitfuse.engine import LLM, SamplingParams
outputs = LLM("demo", device="cpu").generate(["Once upon", "A"], SamplingParams(max_tokens=3, ignore_eos=True))
print([len(output.outputs[0].token_ids) for output in outputs])
"""
ASK = """
from splitfuse.engine import LLM, EngineConfig
from splitfuse.engine.errors import ConfigError
try:
    LLM("demo", device="cpu", speculative_model="ngram")
except ConfigError as exc:
    print(exc)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the package, to delete folders from."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("engine", "kernels"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "splitfuse" / name, ignore=ignore)
    shutil.copy(ROOT / "__init__.py", folder / "splitfuse")
    return folder


def output_of(program: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_rest_generates(extra: str, package: Path, tmp_path: Path) -> None:
    deleted = shutil.move(package / "splitfuse/engine/extras" / extra, tmp_path / extra)
    try:
        assert output_of(GENERATE, package) == "[3, 3]"
    finally:
        shutil.move(deleted, package / "splitfuse/engine/extras" / extra)


def test_what_needs_it_says_so(package: Path, tmp_path: Path) -> None:
    deleted = shutil.move(package / "splitfuse/engine/extras/spec_decode", tmp_path / "spec_decode")
    try:
        message = output_of(ASK, package)
    finally:
        shutil.move(deleted, package / "splitfuse/engine/extras/spec_decode")
    assert message == "--speculative-config needs engine/extras/spec_decode, which this installation does not have"
