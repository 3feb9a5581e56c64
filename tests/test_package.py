"""The root of the package: `from splitfuse import LLM`."""

import subprocess
import sys

import pytest

import splitfuse
from splitfuse import client, engine
from splitfuse.server import package_version


def test_names_are_those_of_the_parts() -> None:
    for name in splitfuse.__all__:
        home = client if hasattr(client, name) else engine
        assert getattr(splitfuse, name) is getattr(home, name), name
    assert splitfuse.StructuredOutputsParams is splitfuse.StructuredOutputs
    assert splitfuse.__version__ == package_version()
    with pytest.raises(AttributeError, match="no attribute 'LMM'"):
        _ = splitfuse.LMM


def test_an_import_costs_nothing() -> None:
    program = (
        "import sys; before = {*sys.modules}; import splitfuse\n"
        "print(sorted({*sys.modules} - before - {'splitfuse', 'typing', 'importlib'}))"
    )
    command = [sys.executable, "-c", "import importlib, typing\n" + program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"
