"""Program: for each folder given, delete it from a copy of the package, and print the answers of the demo model.

    removal.py server FOLDER…   over HTTP: every operation of the whole server
    removal.py engine FOLDER…   of LLM, in a copy without the server

Torch and other packages are imported once; a child is forked for each folder, which costs it 0.6 s.
"""

import asyncio
import dataclasses
import gc
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
IMPORTED = (
    *("certifi", "fastapi.openapi.utils", "httpcore", "jinja2.sandbox", "llguidance", "prometheus_client"),
    *("pydantic.json_schema", "pydantic.v1", "pytest", "safetensors", "sqlite3", "starlette.middleware.cors"),
    *("tokenizers", "torch", "uvicorn.protocols.http.h11_impl", "uvicorn.lifespan.on"),
)
HELPERS = [str(ROOT / "tests/support"), str(ROOT / "tests/server")]
# A server with all of them has every operation.
OPTIONS = {"pooler_config": {"pooling_type": "LAST"}}
# Options of LLM that need a folder of engine/extras.
NEEDED_FOR: dict[str, dict[str, Any]] = {
    "engine/extras/deadlines": {"ttft_ms": 500},
    "engine/extras/disk_cache": {"prefix_cache_dir": "prefixes"},
    "engine/extras/lora": {"enable_lora": True},
    "engine/extras/parallel": {"tensor_parallel_size": 2},
    "engine/extras/pooling": {"pooler_config": {"pooling_type": "LAST"}},
    "engine/extras/simulation": {"record": "steps.jsonl"},
    "engine/extras/spec_decode": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
    "engine/extras/transformers_impl": {"model_impl": "transformers"},
}
Operation = tuple[str, str, Any]  # method, path, body
PACKAGES = {"server": ("client", "engine", "kernels", "server"), "engine": ("engine", "kernels")}


def copy_package(kind: str, copy: Path) -> None:
    """Link to every file of the package; what is compiled stays in the copy."""
    for package in PACKAGES[kind]:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, copy / "splitfuse" / package, ignore=ignore, copy_function=os.symlink)
    os.symlink(ROOT / "__init__.py", copy / "splitfuse/__init__.py")


async def served(operations: Sequence[Operation] | None) -> dict[str, object]:
    """Return the answers of a server with the options that are left, and the refusal if one of them is refused."""
    from splitfuse.engine.errors import ConfigError
    from splitfuse.server.settings import Settings

    fields = {field.name for field in dataclasses.fields(Settings)}
    results = {"results": tempfile.mkstemp(suffix=".db", dir=os.getcwd())[1]} if "results" in fields else {}
    try:
        return await asked(results | {name: value for name, value in OPTIONS.items() if name in fields}, operations)
    except ConfigError as exc:
        return await asked(results, operations) | {"refusal": str(exc)}


async def asked(options: Mapping[str, Any], operations: Sequence[Operation] | None) -> dict[str, object]:
    """Submit, poll and stream, in a server of this process; then ask each operation of the whole server."""
    from serving import ready_client

    from splitfuse.server.app import build_app
    from splitfuse.server.settings import Settings

    app = build_app(Settings(model="demo", device="cpu", num_threads=1, max_model_len=128, **options))
    body = {"prompt": "Once upon", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    async with ready_client(app) as client:
        missing = (await client.get("/no/such/path")).status_code
        document = (await client.get("/openapi.json")).json()
        accepted = (await client.post("/generate", json=body)).json()
        polled = (await client.get(accepted["result_url"], params={"wait": 60})).json()
        streamed = (await client.post("/generate", json={**body, "stream": True})).text
        ready = (await client.get("/ready")).status_code
        operations = all_operations(document, app) if operations is None else operations
        answers = {f"{method} {path}": await status(client, method, path, body) for method, path, body in operations}
    few = {"polled": polled["token_ids"], "events": streamed.count("event: token"), "ready": ready, "missing": missing}
    shown = [f"{method} {path}" for path, methods in document["paths"].items() for method in methods]
    return {
        "few": few, "refusal": "", "shown": shown, "operations": operations, "answers": answers, "loaded": loaded(),
    } | {"broken": [router.folder for router in app.state.lazy_routes.broken]}  # fmt: skip


def all_operations(document: dict[str, Any], app: Any) -> list[Operation]:
    """Return the operations of the document with a small example each, and those that it does not show."""
    operations = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            example = json.loads(json.dumps(content.get("example")).replace(": 32", ": 2"))
            operations.append((method, path, example))
    hidden = [
        route for router in app.state.lazy_routes.loaded for route in router.routes if not route.include_in_schema
    ]
    return operations + [(method.lower(), route.path, {}) for route in hidden for method in route.methods]


def loaded() -> list[str]:
    """Return the folders of extras of which this process has loaded more than a declaration."""
    names = [name.split(".") for name in sys.modules if name.startswith("splitfuse.")]
    return sorted({"/".join(parts[1:4]) for parts in names if len(parts) > 4})


async def status(client: httpx.AsyncClient, method: str, path: str, body: object) -> str:
    """Return the status of an answer, with its text if the server failed."""
    async with client.stream(method, re.sub(r"\{[^}]*\}", "none", path), json=body) as response:
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            await response.aread()
        return str(response.status_code) + (f" {response.text}" if response.status_code >= 500 else "")


def generated(folder: str) -> dict[str, object]:
    """Generate, and ask for what needs the folder."""
    from splitfuse.engine import LLM, SamplingParams
    from splitfuse.engine.errors import ConfigError

    llm = LLM("demo", device="cpu")
    outputs = llm.generate(["Once upon", "A"], SamplingParams(max_tokens=3, ignore_eos=True))
    refusal = ""
    try:
        if (option := NEEDED_FOR.get(folder)) is not None:
            LLM("demo", device="cpu", **option)
        if folder == "engine/extras/weight_updates":
            llm.sleep()
    except ConfigError as exc:
        refusal = str(exc)
    return {"lengths": [len(output.outputs[0].token_ids) for output in outputs], "refusal": refusal}


def answers(kind: str, copy: str, folder: str, operations: Sequence[Operation] | None) -> dict[str, object]:
    """Return the answers of the copy without this folder."""
    sys.path[:1] = [copy, *HELPERS]
    try:
        return asyncio.run(served(operations)) if kind == "server" else generated(folder)
    except BaseException:
        return {"error": traceback.format_exc()}


def main(kind: str, *folders: str) -> None:
    """Print a line for each folder; of a server first one for the whole, as folder "."."""
    for name in IMPORTED:
        import_module(name)
    gc.freeze()
    with tempfile.TemporaryDirectory() as copy, tempfile.TemporaryDirectory() as aside:
        os.chdir(aside)  # results
        copy_package(kind, Path(copy))
        whole = {"operations": [], "loaded": []}
        if kind == "server":
            print(".", line := forked(kind, copy, ".", None), flush=True)
            whole = json.loads(line)
        for folder in folders:
            deleted = shutil.move(Path(copy, "splitfuse", folder), Path(aside, "deleted"))
            # No operation needs a folder of which nothing is loaded after all operations.
            operations = whole["operations"] if folder in whole["loaded"] else []
            print(folder, forked(kind, copy, folder, operations), flush=True)
            shutil.move(deleted, Path(copy, "splitfuse", folder))


def forked(kind: str, copy: str, folder: str, operations: Sequence[Operation] | None) -> str:
    """Return the answers of a child as JSON."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writing, "w") as pipe:
            json.dump(answers(kind, copy, folder, operations), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.wait()
    return text


if __name__ == "__main__":
    main(*sys.argv[1:])
