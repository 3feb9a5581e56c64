"""Embeddings, rerank, scores, classes and pooling over HTTP, by tiny random models."""

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from serving import ready_client
from tiny_encoders import save_pooled
from tiny_models import save_model

from splitfuse.engine.serving.async_engine import AsyncEngine
from splitfuse.engine.serving.submitted_request import SubmittedRequest
from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own, of tiny shapes


@contextlib.asynccontextmanager
async def served(folder: Path, **settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, FastAPI]]:
    app = build_app(Settings(model=str(folder), device="cpu", dtype="float32", served_model_name="tiny", **settings))
    async with ready_client(app) as client:
        yield client, app


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedder")
    save_pooled("bert", folder, prompts={"query": "find: "})
    return folder


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scorer")
    save_pooled("xlm-roberta", folder, num_labels=1)
    return folder


async def test_every_form_of_input_is_the_same_text(embedder: Path) -> None:
    async with served(embedder) as (client, app):
        ids = app.state.service.tokenizer.encode("rain")
        answers = [
            (await client.post("/v1/embeddings", json={"model": "tiny", "input": value})).json()
            for value in ("rain", ["rain"], ids, [ids], ["rain", "bread"])
        ]
        vectors = [answer["data"][0]["embedding"] for answer in answers]
        assert vectors == [vectors[0]] * len(vectors)
        assert np.linalg.norm(vectors[0]) == pytest.approx(1, abs=1e-6)
        whole = answers[-1]
        assert [item["index"] for item in whole["data"]] == [0, 1]
        num_tokens = len(ids) + len(app.state.service.tokenizer.encode("bread"))
        assert whole["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        assert (whole["object"], whole["model"]) == ("list", "tiny")


async def test_an_answer_of_too_many_numbers_is_refused(embedder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("splitfuse.server.apis.embeddings.work.MAX_NUMBERS", 640)
    async with served(embedder) as (client, _):
        for route in ("/pooling", "/v1/embeddings", "/api/embed"):
            few, many = [await client.post(route, json={"input": ["a"] * num}) for num in (1, 11)]
            assert (few.status_code, many.status_code) == (200, 413), route
            assert re.search(r"would have \d+ numbers, more than 640", many.text)


async def test_dimensions_base64_and_prompts(embedder: Path) -> None:
    async with served(embedder) as (client, _):
        fields = {"input": "rain", "dimensions": 8}
        (short,) = (await client.post("/v1/embeddings", json=fields)).json()["data"]
        (text,) = (await client.post("/v1/embeddings", json={**fields, "encoding_format": "base64"})).json()["data"]
        assert np.frombuffer(base64.b64decode(text["embedding"]), "<f4").tolist() == short["embedding"]
        assert len(short["embedding"]) == 8
        for body, said in [
            ({"dimensions": 65}, "dimensions 65 is more than the 64"),
            ({"dimensions": 0}, "dimensions must be"),
            ({"input": []}, "input must be"),
            ({"input": ""}, None),
            ({"input": [["x"]]}, "input[0] must be a text"),
            ({"input": [[]]}, "input has an empty list"),
            ({"input": [10**6]}, "token id"),
            ({"input": "x" * 600}, "truncate_prompt_tokens to 512 or less"),
            ({"prompt_name": "title"}, "known: query"),
            ({"truncation_side": "left"}, "truncation_side is not supported"),
            ({"truncation_side": "right"}, None),
            ({"encoding_format": "int8"}, "encoding_format"),
            ({"model": "other"}, "served: tiny"),
        ]:
            response = await client.post("/v1/embeddings", json={"input": "rain", **body})
            if said is None:  # the special tokens are there
                assert response.status_code == 200, response.text
                continue
            assert response.status_code in (400, 404), (body, response.text)
            assert said in response.json()["error"]["message"], (body, response.text)
        cut = await client.post("/v1/embeddings", json={"input": "x" * 600, "truncate_prompt_tokens": 12})
        assert cut.json()["usage"]["prompt_tokens"] == 12


async def test_many_texts_are_computed_beside_one_another(embedder: Path) -> None:
    """2,048 texts, more than the queue holds; metrics count them, and nothing is left."""
    texts = [f"text {number}" for number in range(2048)]
    async with served(embedder, max_queue_size=40) as (client, app):
        answer = (await client.post("/v1/embeddings", json={"input": texts})).json()
        assert [item["index"] for item in answer["data"]] == list(range(2048))
        last = (await client.post("/v1/embeddings", json={"input": texts[-1]})).json()
        assert last["data"][0]["embedding"] == answer["data"][-1]["embedding"]
        too_many = await client.post("/v1/embeddings", json={"input": [*texts, "one more"]})
        assert "at most 2048 items" in too_many.json()["error"]["message"]
        metrics = (await client.get("/metrics")).text
        assert 'request_success_total{finished_reason="stop",model_name="tiny"} 2049.0' in metrics
        assert app.state.service.engine.num_unfinished == 0


async def test_a_disconnect_aborts(embedder: Path) -> None:
    async with served(embedder) as (client, app):
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/embeddings", json={"input": ["x" * 400] * 2000}, timeout=0.3)
        engine = app.state.service.engine
        await asyncio.wait_for(engine._idle.wait(), 60)
        assert (await client.post("/v1/embeddings", json={"input": "rain"})).status_code == 200


async def test_an_input_that_finds_no_place_ends_the_others(embedder: Path) -> None:
    async with served(embedder, max_queue_size=1) as (client, app):
        engine = app.state.service.engine
        async with engine.between_steps():  # the first input waits
            answer = await client.post("/v1/embeddings", json={"input": ["rain", "bread"]})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
            assert engine.num_unfinished == 0


async def test_an_end_of_the_server_is_a_503(embedder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(embedder) as (client, app):
        engine, submit, num_left, is_submitted = app.state.service.engine, AsyncEngine.submit, 2, asyncio.Event()

        async def noted(*args: Any, **fields: Any) -> SubmittedRequest:
            nonlocal num_left
            num_left -= 1
            if not num_left:
                is_submitted.set()
            return await submit(*args, **fields)

        monkeypatch.setattr(AsyncEngine, "submit", noted)
        async with engine.between_steps():
            asked = asyncio.create_task(client.post("/v1/embeddings", json={"input": ["rain", "bread"]}))
            await is_submitted.wait()
            engine.abort_all()  # like a drain that takes too long
            answer = await asked
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "cancelled")
        assert "retry-after" in answer.headers


async def test_documents_are_sorted(scorer: Path) -> None:
    body, texts = {"query": "rain", "documents": ["bread", {"text": "wet weather"}, "a"]}, ["bread", "wet weather", "a"]
    async with served(scorer) as (client, _):
        pair = await client.post("/score", json={"text_1": "rain", "text_2": texts})
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            answer = (await client.post(path, json=body)).json()
            scores = [item["relevance_score"] for item in answer["results"]]
            assert scores == sorted(scores, reverse=True)
            assert sorted(item["index"] for item in answer["results"]) == [0, 1, 2]
            assert all(item["document"]["text"] == texts[item["index"]] for item in answer["results"])
            short = (await client.post(path, json={**body, "top_n": 1, "return_documents": False})).json()
            first = answer["results"][0]
            assert short["results"] == [{"index": first["index"], "relevance_score": first["relevance_score"]}]
            by_index = {item["index"]: item["relevance_score"] for item in answer["results"]}
            assert {item["index"]: item["score"] for item in pair.json()["data"]} == by_index
        error = (await client.post("/rerank", json={"query": "", "documents": ["a"]})).json()["error"]
    assert (error["param"], error["message"]) == ("query", "query is empty; send at least one character")


async def test_an_embedder_scores_by_the_cosine(embedder: Path) -> None:
    async with served(embedder) as (client, _):
        vectors = (await client.post("/v1/embeddings", json={"input": ["rain", "bread"]})).json()["data"]
        expected = float(np.dot(vectors[0]["embedding"], vectors[1]["embedding"]))
        answer = (await client.post("/score", json={"queries": "rain", "documents": "bread"})).json()
        assert answer["data"][0]["score"] == pytest.approx(expected, abs=1e-6)


async def test_labels(tmp_path: Path) -> None:
    save_pooled("bert", tmp_path, num_labels=3)
    async with served(tmp_path) as (client, _):
        answer = (await client.post("/classify", json={"input": ["rain", "bread"]})).json()
        for item in answer["data"]:
            assert sum(item["probs"]) == pytest.approx(1, abs=1e-5)
            assert item["label"] == f"LABEL_{int(np.argmax(item['probs']))}"
            assert item["num_classes"] == 3
        refused = await client.post("/v1/embeddings", json={"input": "rain"})
        assert "this model scores and has no embeddings" in refused.json()["error"]["message"]


async def test_states_of_all_tokens(embedder: Path) -> None:
    async with served(embedder) as (client, _):
        (item,) = (await client.post("/pooling", json={"input": "rain"})).json()["data"]
        assert np.array(item["data"]).shape == (6, 64)
        (mean,) = (await client.post("/pooling", json={"input": "rain", "task": "embed"})).json()["data"]
        (embedding,) = (await client.post("/v1/embeddings", json={"input": "rain"})).json()["data"]
        assert mean["data"] == embedding["embedding"]


async def test_ollama(embedder: Path) -> None:
    async with served(embedder) as (client, _):
        (expected,) = (await client.post("/v1/embeddings", json={"input": "rain"})).json()["data"]
        answer = (await client.post("/api/embed", json={"model": "tiny:latest", "input": ["rain", "x" * 900]})).json()
        assert answer["embeddings"][0] == expected["embedding"]
        assert answer["prompt_eval_count"] == 6 + 512
        old = (await client.post("/api/embeddings", json={"model": "tiny", "prompt": "rain"})).json()
        assert old == {"embedding": expected["embedding"]}
        strict = await client.post("/api/embed", json={"input": "x" * 900, "truncate": False})
        assert strict.status_code == 400
        assert set(strict.json()) == {"error"}


async def test_no_text_comes_of_an_embedder(embedder: Path) -> None:
    async with served(embedder) as (client, _):
        chat = {"messages": [{"role": "user", "content": "x"}]}
        for path, body in [
            ("/generate", {"prompt": "x"}),
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/chat/completions", chat),
        ]:
            response = await client.post(path, json=body)
            assert response.status_code == 400
            assert "generates no text" in response.json()["error"]["message"]


async def test_a_batch_of_files(embedder: Path) -> None:
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": {"model": "tiny", "input": name}}
        for name in ("rain", "bread")
    ]
    async with served(embedder) as (client, _):
        content = "\n".join(map(json.dumps, lines))
        file = (await client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})).json()
        asked = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h"}
        batch = (await client.post("/v1/batches", json=asked)).json()
        async with asyncio.timeout(240):
            while batch["status"] not in ("completed", "failed"):
                await asyncio.sleep(0.05)
                batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
        output = (await client.get(f"/v1/files/{batch['output_file_id']}/content")).text
        answers = {line["custom_id"]: line["response"]["body"] for line in map(json.loads, output.splitlines())}
        single = (await client.post("/v1/embeddings", json={"input": "bread"})).json()
        assert answers["bread"]["data"] == single["data"]


async def test_a_chat_model_has_no_routes_of_embeddings(tmp_path: Path) -> None:
    save_model("llama-gqa-tied", tmp_path)
    async with served(tmp_path) as (client, app):
        for path in ("/v1/embeddings", "/rerank", "/score", "/classify", "/pooling"):
            response = await client.post(path, json={"input": "x"})
            assert response.status_code == 404
            assert "--pooler-config" in response.json()["error"]["message"]
        assert "/v1/embeddings" not in app.openapi()["paths"]
        answer = await client.post("/api/embed", json={"input": "x"})
        assert (answer.status_code, "no embeddings" in answer.json()["error"]) == (400, True)
        batch = {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}
        refused = await client.post("/v1/batches", json=batch)
        assert refused.json()["error"]["param"] == "endpoint"


async def test_a_chat_model_with_the_setting_has_both(tmp_path: Path) -> None:
    save_model("qwen3", tmp_path)
    async with served(tmp_path, pooler_config={"pooling_type": "LAST"}) as (client, _):
        text, vectors = await asyncio.gather(
            client.post("/v1/completions", json={"prompt": "rain", "max_tokens": 20, "temperature": 0}),
            client.post("/v1/embeddings", json={"input": ["rain"] * 50}),
        )
        assert text.json()["usage"]["completion_tokens"] >= 1
        assert len({json.dumps(item["embedding"]) for item in vectors.json()["data"]}) == 1
