"""Several models in turn: what users report of other routers, and the requests by which clients choose a model."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest
from serving import ServerProcess, parse_events

from splitfuse.engine.config.named_models import DEMO_FOLDER

A, B, C = "splitfuse-demo-5m", "demo-draft", "demo-other"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One place for the demo and two copies of its smaller sibling."""
    folders = [tmp_path_factory.mktemp("models") / name for name in (B, C)]
    for folder in folders:
        shutil.copytree(DEMO_FOLDER / "draft", folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(DEMO_FOLDER / name, folder)
    flags = ("--models-max", "1", "--model-turn", "0.1", "--num-kv-blocks", "256")
    with ServerProcess("demo", *map(str, folders), *flags) as server:
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=200) as client:
        yield client


def body_of(name: str, num_tokens: int = 4, **more: Any) -> dict[str, Any]:
    return {"model": name, "prompt": "Once", "max_tokens": num_tokens, "ignore_eos": True, **more}


async def ask(client: httpx.AsyncClient, name: str) -> str:
    answer = await client.post("/v1/completions", json=body_of(name))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["model"])


async def states(client: httpx.AsyncClient) -> dict[str, str]:
    return {entry["id"]: entry["status"]["value"] for entry in (await client.get("/models")).json()["data"]}


async def until(client: httpx.AsyncClient, name: str, state: str) -> None:
    async with asyncio.timeout(200):
        while (await states(client))[name] != state:  # noqa: ASYNC110 - the server tells no event
            await asyncio.sleep(0.05)


async def test_a_stream_ends_by_itself_before_another_model_loads(client: httpx.AsyncClient) -> None:
    """llama.cpp #21678, #22447, #24849: a swap kills the request that runs."""
    async with client.stream("POST", "/v1/completions", json=body_of(A, 300, stream=True)) as answer:
        lines = answer.aiter_lines()
        text = await anext(lines) + "\n"
        other = asyncio.create_task(ask(client, B))
        text += "\n".join([line async for line in lines])
    events = parse_events(text)
    assert events[-1]["data"] == "[DONE]"
    assert events[-2]["data"]["choices"][0]["finish_reason"] == "length"
    assert await other == B


async def test_two_models_that_want_one_place_at_once_both_get_it(client: httpx.AsyncClient) -> None:
    """llama.cpp #28443: with A idle, one of B and C is never loaded."""
    await ask(client, A)
    async with asyncio.timeout(200):
        assert await asyncio.gather(ask(client, B), ask(client, C)) == [B, C]


async def test_open_webui_sees_and_chooses_models(client: httpx.AsyncClient) -> None:
    """The requests of its routers/openai.py and routers/ollama.py."""
    client.headers["X-OpenWebUI-User-Name"] = "Somebody"
    assert [entry["id"] for entry in (await client.get("/v1/models")).json()["data"]] == [A, B, C]
    talk = [{"role": "user", "content": "Hi"}]
    chat = {"model": B, "messages": talk, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 3}
    events = parse_events((await client.post("/v1/chat/completions", json=chat)).text)
    assert {event["data"]["model"] for event in events[:-1]} == {B}
    version = (await client.get("/api/version")).json()["version"]
    assert all(part.isdigit() for part in version.split("."))
    assert [model["model"] for model in (await client.get("/api/tags")).json()["models"]] == [A, B, C]
    (running,) = (await client.get("/api/ps")).json()["models"]
    assert (running["name"], datetime.fromisoformat(running["expires_at"]).timestamp() > 0) == (B, True)
    body = {"model": f"{B}:latest", "messages": talk, "options": {"num_predict": 3}, "stream": True}
    lines = (await client.post("/api/chat", json=body)).text.splitlines()
    assert '"done":true' in lines[-1].replace(" ", "")
    unload = {"model": f"{B}:latest", "keep_alive": 0, "prompt": ""}
    assert (await client.post("/api/generate", json=unload)).json()["done_reason"] == "unload"
    await until(client, B, "unloaded")
    assert (await client.get("/api/ps")).json() == {"models": []}


async def test_llama_cpps_routes_load_and_unload(client: httpx.AsyncClient) -> None:
    assert (await client.post("/models/load", json={"model": C})).json()["success"] is True
    await until(client, C, "loaded")
    assert set((await states(client)).values()) == {"loaded", "unloaded"}
    refused = await client.get(f"/props?model={B}&autoload=false")
    assert (refused.status_code, "is not loaded" in refused.json()["error"]["message"]) == (400, True)
    assert (await client.get(f"/props?model={C}&autoload=false")).status_code == 200
    assert (await client.post("/models/unload", json={"model": C})).json()["success"] is True
    await until(client, C, "unloaded")
    assert (await client.post("/models/load", json={"model": "none"})).status_code == 404


async def test_vllms_sleep_is_the_end_of_a_stay(client: httpx.AsyncClient) -> None:
    assert (await client.post(f"/wake_up?model={B}")).status_code == 200
    await until(client, B, "loaded")
    assert (await client.get(f"/is_sleeping?model={B}")).json() == {"is_sleeping": False}
    assert (await client.post(f"/sleep?level=1&model={B}")).status_code == 200
    await until(client, B, "unloaded")
    assert (await client.get(f"/is_sleeping?model={B}")).json() == {"is_sleeping": True}
    assert (await client.post("/sleep?model=none")).status_code == 404
