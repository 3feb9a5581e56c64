"""Program: for each folder given, delete it from a copy of the package, serve the demo model and print the answers.

Torch and FastAPI are imported once; a child is forked for each folder, so a folder costs a second.
"""

import asyncio
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
PACKAGES = ("client", "engine", "kernels", "server")


def copy_without(folder: str, copy: Path) -> None:
    """Link to every file of the package but those of this folder."""
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, copy / "splitfuse" / package, ignore=ignore, copy_function=os.symlink)
    os.symlink(ROOT / "__init__.py", copy / "splitfuse/__init__.py")
    shutil.rmtree(copy / "splitfuse" / folder)


async def answers() -> dict[str, object]:
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


if __name__ == "__main__":
    for name in sys.argv[1:]:
        reading, writing = os.pipe()
        if os.fork() == 0:
            with tempfile.TemporaryDirectory() as copy:
                try:
                    copy_without(name, Path(copy))
                    sys.path[:1] = [copy, *HELPERS]
                    result = asyncio.run(answers())
                except BaseException:
                    result = {"error": traceback.format_exc()}
            os.write(writing, json.dumps(result).encode()[:60_000])
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            print(name, pipe.read(), flush=True)
        os.wait()
