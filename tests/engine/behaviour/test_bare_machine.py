"""The engine and the kernels need torch, transformers and their dependencies, no package of the HTTP server."""

import os
import subprocess
import sys
from pathlib import Path

from bare_machine import MISSING, without_packages

# Import every module of both packages, run the demo model, and ask for a grammar, which cannot be compiled.
PROGRAM = """
import importlib.util, pkgutil
from splitfuse import engine, kernels
from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.errors import InvalidRequestError
for package in (engine, kernels):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if ".cuda." not in module.name or importlib.util.find_spec("triton"):
            importlib.import_module(module.name)
llm = LLM(device="cpu")
params = SamplingParams(temperature=0, max_tokens=4)
print(len(llm.generate("Once upon a time", params)[0].outputs[0].token_ids))
try:
    llm.generate("Once", SamplingParams(structured_outputs={"regex": "a+"}))
except InvalidRequestError as exc:
    print(exc)
"""


def test_a_model_runs_without_the_servers_packages(tmp_path: Path) -> None:
    missing = (*MISSING, "httpx")
    environment = without_packages(tmp_path, dict(os.environ), missing)

    def output(program: str) -> str:
        command = [sys.executable, "-c", program]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        return process.stdout

    assert output(f"import importlib.util; print(*filter(importlib.util.find_spec, {missing!r}))") == "\n"
    num_tokens, refusal = output(PROGRAM).splitlines()
    assert num_tokens == "4"
    assert "pip install llguidance" in refusal
