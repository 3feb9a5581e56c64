"""The package of server/docs/extending.md, installed beside splitfuse, adds its setting, its part and its route."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"```(?:toml|python)\n# (\S+)\n(.*?)```", re.DOTALL)
PROGRAM = """
import asyncio, json, sys
import httpx
from fake_engine import FakeEngine
from serving import serving
from splitfuse.server.app import build_app
from splitfuse.server.commands.settings_sources import resolve

async def main():
    app = build_app(resolve({}, json.loads(sys.argv[1])), FakeEngine())
    is_imported = [name in sys.modules for name in ("tally", "tally.part", "tally.routes")]
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=70) as client:
        await app.state.service.lifecycle.loading
        for _ in range(2):
            await client.post("/generate", json={"prompt": "Once", "max_tokens": 2})
        response = await client.get("/tally")
        paths = (await client.get("/openapi.json")).json()["paths"]
    print(json.dumps([is_imported, response.status_code, response.json(), "/tally" in paths]))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder into which pip has installed the package."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name, text in BLOCK.findall((ROOT / "server/docs/extending.md").read_text()):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, source]
    installed = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution found for setuptools" in installed.stderr:
        pytest.skip("needs a package index: pip builds with a setuptools of its own")
    assert installed.returncode == 0, installed.stderr
    return target


def answer(site: Path, variables: dict[str, str]) -> list[Any]:
    """Serve in a process that has the package, submit two jobs, and return what the program prints."""
    path = os.pathsep.join([str(site), str(ROOT / "tests/server"), str(ROOT / "tests/support")])
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(variables)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.returncode == 0, process.stderr
    result: list[Any] = json.loads(process.stdout)
    return result


def test_it_serves_its_route_with_its_setting_and_its_part(site: Path) -> None:
    variables = {"SPLITFUSE_TALLY": "true", "SPLITFUSE_TALLY_UNIT": "requests"}
    assert answer(site, variables) == [[True, True, False], 200, {"requests": 2}, True]


def test_its_code_is_not_imported_while_no_setting_asks_for_it(site: Path) -> None:
    is_imported, status, _, is_documented = answer(site, {})
    assert (is_imported, status, is_documented) == ([True, False, False], 404, False)


def test_the_engine_has_its_extension_too(site: Path) -> None:
    program = """
from splitfuse.engine import LLM
from tally_steps.part import Steps
llm = LLM("demo", device="cpu", num_threads=1, tally_steps=True)
llm.generate("Once", max_tokens=3, ignore_eos=True)
print(llm.engine.part(Steps).num_steps, llm.engine.extensions.stats()["num_steps"])
"""
    process = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert process.stdout.split() == ["3", "3"], process.stderr
