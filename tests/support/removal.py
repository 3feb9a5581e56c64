"""Program: for each folder given, delete it from a copy of the package, serve the demo model and print the answers.

Torch and FastAPI are imported once; a child is forked for each folder, so a folder costs a second.
"""

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
    from splitfuse.server.app import build_app
    from splitfuse.server.process.process import uvicorn_config
    from splitfuse.server.settings import Settings
    from uvicorn.server import Server

    app = build_app(Settings(model="demo", device="cpu", num_threads=1))
    config = uvicorn_config(app)
    config.port, config.host = 0, "127.0.0.1"
    server = Server(config)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    await app.state.service.lifecycle.loading
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    body = {"prompt": "Once upon", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        accepted = (await client.post("/generate", json=body)).json()
        polled = (await client.get(accepted["result_url"], params={"wait": 20})).json()
        streamed = (await client.post("/generate", json={**body, "stream": True})).text
        ready = (await client.get("/ready")).status_code
    server.should_exit = True
    await serving
    return {"polled": polled["token_ids"], "events": streamed.count("event: token"), "ready": ready}


if __name__ == "__main__":
    import asyncio

    for name in sys.argv[1:]:
        reading, writing = os.pipe()
        if os.fork() == 0:
            with tempfile.TemporaryDirectory() as copy:
                try:
                    copy_without(name, Path(copy))
                    sys.path[0] = copy
                    result = asyncio.run(answers())
                except BaseException:
                    result = {"error": traceback.format_exc()}
            os.write(writing, json.dumps(result).encode()[:60_000])
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            print(name, pipe.read(), flush=True)
        os.wait()
