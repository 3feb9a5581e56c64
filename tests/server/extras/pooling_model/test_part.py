"""An embedding model beside the demo: routes, keys, batches, ends and starts of its process."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from serving import ready_client
from tiny_encoders import save_pooled

from splitfuse.engine.errors import ConfigError
from splitfuse.server.app import build_app
from splitfuse.server.extras.pooling_model import pooling_server
from splitfuse.server.extras.pooling_model.part import PoolingModel
from splitfuse.server.extras.pooling_model.pooling_server import PoolingServer, _give_way
from splitfuse.server.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own, of tiny shapes


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedder")
    save_pooled("bert", folder, prompts={"query": "find: "})
    return folder


@pytest.fixture(autouse=True)
def given_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the processes that would have given way."""
    pids: list[int] = []
    monkeypatch.setattr(pooling_server, "_give_way", pids.append)
    return pids


@contextlib.asynccontextmanager
async def served(embedder: Path, **settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, PoolingModel]]:
    app = build_app(Settings(model="demo", num_threads=1, embedding_model=str(embedder), **settings))
    service = app.state.service
    async with ready_client(app) as client:
        yield client, service.part(PoolingModel)


async def test_each_route_goes_to_its_model_and_has_its_errors(embedder: Path) -> None:
    async with served(embedder, max_body_bytes=200) as (client, _):
        answer = (await client.post("/v1/embeddings", json={"input": ["rain", "bread"]})).json()
        assert answer["model"] == embedder.name
        assert [np.linalg.norm(item["embedding"]) for item in answer["data"]] == pytest.approx([1, 1])
        ollama = (await client.post("/api/embed", json={"model": str(embedder), "input": "rain"})).json()
        assert ollama["embeddings"] == [answer["data"][0]["embedding"]]
        ranked = (await client.post("/rerank", json={"query": "rain", "documents": ["bread", "rain"]})).json()
        assert ranked["results"][0]["index"] == 1
        said = await client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2})
        assert said.json()["model"] == "splitfuse-demo-5m"
        listed = (await client.get("/v1/models")).json()["data"]
        assert [entry["id"] for entry in listed] == ["splitfuse-demo-5m", embedder.name]
        assert (await client.get(f"/v1/models/{embedder.name}")).json() == listed[1]
        wrong = await client.post("/v1/embeddings", json={"model": "other", "input": "rain"})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
        long = await client.post("/v1/embeddings", json={"input": "rain " * 100})
        assert long.status_code == 413
        assert "--max-body-bytes" in long.json()["error"]["message"]


async def test_keys_and_lines_of_a_batch_reach_it(embedder: Path) -> None:
    async with served(embedder, api_key=("one", "two")) as (client, part):
        assert (await client.post("/v1/embeddings", json={"input": "rain"})).status_code == 401
        for key in ("one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            answer = await client.post("/v1/embeddings", json={"input": "rain"}, headers=headers)
            assert answer.status_code == 200
        direct = await part.server.post("/v1/embeddings", b'{"input": "rain"}', {"authorization": "Bearer other"})
        assert direct.status_code == 401
        client.headers["Authorization"] = "Bearer one"
        bodies = [{"input": "rain"}, {"input": 7}]
        lines = [
            {"custom_id": str(number), "method": "POST", "url": "/v1/embeddings", "body": body}
            for number, body in enumerate(bodies)
        ]
        file = {"file": ("lines.jsonl", "\n".join(map(json.dumps, lines)))}
        sent = (await client.post("/v1/files", files=file, data={"purpose": "batch"})).json()
        body = {"input_file_id": sent["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
        batch = (await client.post("/v1/batches", json=body)).json()
        while batch["status"] not in ("completed", "failed"):
            await asyncio.sleep(0.05)
            batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
        assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        output = (await client.get(f"/v1/files/{batch['output_file_id']}/content")).json()
        assert len(output["response"]["body"]["data"][0]["embedding"]) > 0
        errors = (await client.get(f"/v1/files/{batch['error_file_id']}/content")).json()
        assert "input" in json.dumps(errors)


async def test_the_process_loads_at_usual_priority_then_has_a_share(
    embedder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = PoolingServer(Settings(model="demo", num_threads=1, embedding_model=str(embedder)))
    has_answered: list[bool] = []
    usual = os.getpriority(os.PRIO_PROCESS, 0)

    def give_way(pid: int) -> None:
        has_answered.append(server.models != () and os.getpriority(os.PRIO_PROCESS, pid) == usual)
        _give_way(pid)

    monkeypatch.setattr(pooling_server, "_give_way", give_way)
    server.begin()
    try:
        await server.is_up()
        assert has_answered == [True]
        assert server.pid is not None
        assert os.getpriority(os.PRIO_PROCESS, server.pid) == 15
        if sys.platform == "linux":
            threads = [int(name) for name in os.listdir(f"/proc/{server.pid}/task")]
            assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {15}, "Linux has one for each"
            assert os.sched_getscheduler(server.pid) == os.SCHED_OTHER, "an idle task may wait for minutes"
    finally:
        await server.stop()


async def test_the_process_starts_again(embedder: Path, given_way: list[int]) -> None:
    async with served(embedder) as (client, part):
        first = part.server.pid
        assert first is not None
        before = (await client.post("/v1/embeddings", json={"input": "rain"})).json()["data"]
        os.kill(first, signal.SIGKILL)
        after = await client.post("/v1/embeddings", json={"input": "rain"})
        while after.status_code == 503:  # it was sent before the end was seen
            after = await client.post("/v1/embeddings", json={"input": "rain"})
        assert after.json()["data"] == before
        assert given_way == [first, part.server.pid]
    assert part.server.pid is None


@contextlib.asynccontextmanager
async def asking_a_stopped_process(embedder: Path, **settings: Any) -> AsyncIterator[tuple[Any, PoolingModel]]:
    """Yield a request that has been sent to the process, which is stopped meanwhile."""
    async with served(embedder, **settings) as (client, part):
        await client.post("/v1/embeddings", json={"input": "rain"})
        is_sent = asyncio.Event()

        async def note(_: httpx.Request) -> None:
            is_sent.set()

        part.server._client.event_hooks = {"request": [note]}
        assert part.server.pid is not None
        os.kill(part.server.pid, signal.SIGSTOP)
        asked = asyncio.create_task(client.post("/v1/embeddings", json={"input": "rain"}))
        await is_sent.wait()
        yield asked, part


async def test_a_drain_waits_for_a_stopped_process(embedder: Path) -> None:
    async with asking_a_stopped_process(embedder) as (asked, part):
        pid, draining = part.server.pid, asyncio.create_task(part.service.lifecycle.drain())
        await asyncio.sleep(0)
        assert part.service.state == "draining"
        assert pid is not None
        os.kill(pid, signal.SIGCONT)
        assert (await asked).status_code == 200
        await draining
        assert part.server.pid is None


async def test_a_drain_that_takes_too_long_is_a_503(embedder: Path) -> None:
    async with asking_a_stopped_process(embedder, drain_timeout=0) as (asked, part):
        await part.service.lifecycle.drain()
        answer = await asked
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert "retry-after" in answer.headers


async def test_requests_wait_while_the_process_refuses(embedder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(embedder) as (client, part):
        monkeypatch.setattr("splitfuse.server.extras.pooling_model.pooling_server._REST_S", 0)
        answers: list[httpx.ConnectError | httpx.Response] = [httpx.ConnectError("refused")]
        answers += [httpx.Response(status, json={}) for status in (503, 200)]

        async def refuse(*_: Any, **__: Any) -> httpx.Response:
            answer = answers.pop(0)
            if isinstance(answer, httpx.ConnectError):
                raise answer
            return answer

        monkeypatch.setattr(part.server._client, "post", refuse)
        assert (await client.post("/v1/embeddings", json={"input": "rain"})).status_code == 200
        assert answers == []


async def test_a_model_that_cannot_be_loaded_ends_the_start(tmp_path: Path) -> None:
    app = build_app(Settings(model="demo", num_threads=1, embedding_model=str(tmp_path)))
    async with app.router.lifespan_context(app):
        with pytest.raises(ConfigError, match=re.escape("the embedding model could not be loaded")):
            await app.state.service.lifecycle.loading


def test_a_first_model_that_pools_is_refused() -> None:
    with pytest.raises(ConfigError, match="--pooler-config"):
        Settings(model="demo", embedding_model="some", pooler_config={"pooling_type": "LAST"})
