"""Program: for each folder given, delete it from a copy of the package, and print the answers of the demo model.

    removal.py server FOLDER…   over HTTP
    removal.py engine FOLDER…   of LLM, in a copy without the server

Torch and FastAPI are imported once; a child is forked for each folder, so a folder costs half a second.
"""

import asyncio
import gc
import json
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import fastapi  # noqa: F401
import httpx
import prometheus_client  # noqa: F401
import tokenizers  # noqa: F401
import torch  # noqa: F401
import uvicorn  # noqa: F401

ROOT = Path(__file__).parents[2]
HELPERS = [str(ROOT / "tests/support"), str(ROOT / "tests/server")]
PACKAGES = {"server": ("client", "engine", "kernels", "server"), "engine": ("engine", "kernels")}


def copy_package(kind: str, copy: Path) -> None:
    """Link to every file of the package; what is compiled stays in the copy."""
    for package in PACKAGES[kind]:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, copy / "splitfuse" / package, ignore=ignore, copy_function=os.symlink)
    os.symlink(ROOT / "__init__.py", copy / "splitfuse/__init__.py")


async def served() -> dict[str, object]:
    """Submit, poll and stream, in a server of this process."""
    from serving import serving

    from splitfuse.server.app import build_app
    from splitfuse.server.settings import Settings

    app = build_app(Settings(model="demo", device="cpu", num_threads=1))
    body = {"prompt": "Once upon", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=70) as client:
        await app.state.service.lifecycle.loading
        accepted = (await client.post("/generate", json=body)).json()
        polled = (await client.get(accepted["result_url"], params={"wait": 60})).json()
        streamed = (await client.post("/generate", json={**body, "stream": True})).text
        ready = (await client.get("/ready")).status_code
    return {"polled": polled["token_ids"], "events": streamed.count("event: token"), "ready": ready}


def generated() -> dict[str, object]:
    """Generate, and ask for speculation, which needs an extra."""
    from splitfuse.engine import LLM, SamplingParams
    from splitfuse.engine.errors import ConfigError

    outputs = LLM("demo", device="cpu").generate(["Once upon", "A"], SamplingParams(max_tokens=3, ignore_eos=True))
    try:
        LLM("demo", device="cpu", speculative_model="ngram")
        refusal = ""
    except ConfigError as exc:
        refusal = str(exc)
    return {"lengths": [len(output.outputs[0].token_ids) for output in outputs], "refusal": refusal}


def answers(kind: str, copy: str) -> dict[str, object]:
    """Return what the copy answers."""
    sys.path[:1] = [copy, *HELPERS]
    try:
        return asyncio.run(served()) if kind == "server" else generated()
    except BaseException:
        return {"error": traceback.format_exc()}


def main(kind: str, *folders: str) -> None:
    """Print a line for each folder."""
    gc.freeze()
    with tempfile.TemporaryDirectory() as copy, tempfile.TemporaryDirectory() as aside:
        copy_package(kind, Path(copy))
        for folder in folders:
            deleted = shutil.move(Path(copy, "splitfuse", folder), Path(aside, "deleted"))
            reading, writing = os.pipe()
            if os.fork() == 0:
                os.write(writing, json.dumps(answers(kind, copy)).encode()[:60_000])
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading) as pipe:
                print(folder, pipe.read(), flush=True)
            os.wait()
            shutil.move(deleted, Path(copy, "splitfuse", folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
