"""Adapters by HTTP: listed, named by requests, loaded and unloaded by an admin while requests run."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from serving import parse_events, ready_client
from tiny_adapters import merged, random_adapter, save_adapter
from tiny_models import greedy, save_model

from splitfuse.engine import SamplingParams
from splitfuse.engine.extras.lora.adapters import Adapters
from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

ADMIN, USER = {"Authorization": "Bearer admin"}, {"Authorization": "Bearer user"}
WAIT = {"Prefer": "wait=50"}
PROMPT = list(range(20, 90))
GREEDY: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 24, "ignore_eos": True}


class World(NamedTuple):
    client: httpx.AsyncClient
    service: Any
    base: Path
    answers: dict[str, list[int]]  # by adapter; "" is the model's


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    base = tmp_path_factory.mktemp("adapters")
    model = save_model("llama-gqa-tied", base / "model")
    answers = {"": greedy(model, PROMPT, 24)}
    for index, name in enumerate(("a", "b", "c")):
        tensors = random_adapter(model, seed=index)
        save_adapter(base / "adapters" / name, tensors)
        answers[name] = greedy(merged(model, tensors), PROMPT, 24)
    return base, answers


@pytest.fixture
async def world(files: tuple[Path, dict[str, list[int]]]) -> AsyncIterator[World]:
    base, answers = files
    settings = Settings(
        model=str(base / "model"),
        served_model_name="base",
        dtype="float32",
        device="cpu",
        num_threads=1,
        num_kv_blocks=256,
        api_key=("user",),
        admin_key=("admin",),
        enable_lora=True,
        lora_modules=(f"a={base}/adapters/a", f'{{"name": "b", "path": "{base}/adapters/b"}}'),
        max_loras=2,
        lora_dir=str(base / "adapters"),
    )
    app = build_app(settings)
    async with ready_client(app, headers=ADMIN) as client:
        yield World(client, app.state.service, base, answers)


async def tokens(client: httpx.AsyncClient, **fields: Any) -> list[int]:
    answer = await client.post("/generate", json=GREEDY | fields, headers=WAIT)
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["token_ids"]
    return found


async def test_requests_name_adapters_on_every_api(world: World) -> None:
    client, answers = world.client, world.answers
    models = (await client.get("/v1/models")).json()["data"]
    assert [(model["id"], model.get("parent")) for model in models] == [("base", None), ("a", "base"), ("b", "base")]
    assert (await client.get("/v1/models/a")).json()["root"] == "base"
    found = await asyncio.gather(*(tokens(client, model=name) for name in ("a", "b", "base", "a")))
    assert found == [answers["a"], answers["b"], answers[""], answers["a"]]
    assert await tokens(client, lora_path="b") == answers["b"]
    answer = (await client.post("/v1/completions", json=GREEDY | {"model": "b", "return_token_ids": True})).json()
    assert answer["model"] == "b"
    assert answer["choices"][0]["token_ids"] == answers["b"]
    text = answer["choices"][0]["text"]
    ollama = {"model": "b", "prompt": "x", "raw": True, "stream": False, "options": {"num_predict": 3}}
    assert (await client.post("/api/generate", json=ollama)).json()["model"] == "b"
    assert text != (await client.post("/v1/completions", json=GREEDY)).json()["choices"][0]["text"]
    for fields in ({"model": "z"}, {"lora_path": "z"}):
        refused = await client.post("/generate", json=GREEDY | fields)
        assert refused.status_code == 404, refused.text
    assert "served: base, a, b" in (await client.post("/generate", json=GREEDY | {"model": "z"})).text


async def test_an_adapters_answer_has_a_receipt_that_only_its_files_verify(world: World) -> None:
    client = world.client
    receipts = {}
    for name in ("a", "b", "base"):
        answer = await client.post("/generate", json=GREEDY | {"model": name, "receipt": True}, headers=WAIT)
        receipts[name] = answer.json()["receipt"]
    for receipt in receipts.values():
        verdict = (await client.post("/verify", json={"receipt": receipt})).json()
        assert (verdict["valid"], verdict["reason"]) == (True, None)
    assert "adapter" not in receipts["base"]
    forged = receipts["a"] | {"adapter": receipts["b"]["adapter"]}
    verdict = (await client.post("/verify", json={"receipt": forged})).json()
    assert not verdict["valid"]
    assert verdict["first_mismatch"] is not None
    plain = {name: value for name, value in receipts["a"].items() if name != "adapter"}
    assert not (await client.post("/verify", json={"receipt": plain})).json()["valid"]
    malformed = await client.post("/verify", json={"receipt": receipts["a"] | {"adapter": "sha256:0"}})
    assert (malformed.status_code, malformed.json()["error"]["code"]) == (400, "receipt_malformed")
    await client.post("/v1/unload_lora_adapter", json={"lora_name": "a"})
    refused = await client.post("/verify", json={"receipt": receipts["a"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "other_adapter")
    assert "--lora-modules" in refused.text


async def test_an_admin_loads_and_unloads_while_requests_run(world: World) -> None:
    client, base = world.client, world.base
    load = {"lora_name": "c", "lora_path": "c"}
    assert (await client.post("/v1/load_lora_adapter", json=load, headers=USER)).status_code == 403
    body = GREEDY | {"model": "a", "max_tokens": 300, "stream": True}
    async with client.stream("POST", "/generate", json=body) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        answer = await client.post("/v1/unload_lora_adapter", json={"lora_name": "a"})
        assert answer.text == "Success: LoRA adapter 'a' removed successfully."
        assert (await client.post("/generate", json=GREEDY | {"model": "a"})).status_code == 404
        assert (await client.post("/v1/load_lora_adapter", json=load)).status_code == 200
        assert await tokens(client, model="c") == world.answers["c"]  # room for b or c beside a
        text = "\n".join([line async for line in lines])
    done = next(event for event in parse_events(f"\n{text}\n") if event["event"] == "done")
    assert done["data"]["token_ids"][:24] == world.answers["a"]
    assert len(done["data"]["token_ids"]) == 300
    again = await client.post("/v1/load_lora_adapter", json=load)
    assert again.status_code == 400
    assert "already been loaded" in again.text
    assert (await client.post("/v1/load_lora_adapter", json=load | {"load_inplace": True})).status_code == 200
    assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "a"})).status_code == 404
    leads_out = base / "adapters" / "leads out"
    leads_out.mkdir()
    (leads_out / "adapter_config.json").symlink_to(base / "model" / "config.json")
    for path in ("../model", "/etc", "nothing", "a\0", "leads out"):
        refused = await client.post("/v1/load_lora_adapter", json={"lora_name": "d", "lora_path": path})
        assert refused.status_code == 400, path
        if path == "leads out":
            assert "each file that it links to" in refused.text
    refused = await client.post(
        "/v1/load_lora_adapter", json={"lora_name": "base", "lora_path": str(base / "adapters" / "a")}
    )
    assert "the model's own name" in refused.text


async def test_a_greedy_key_leaves_places_to_other_keys(
    files: tuple[Path, dict[str, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two places: a key with work for two adapters gets one at a time, so another key's adapter is read at once."""
    base, answers = files
    settings = Settings(
        model=str(base / "model"),
        dtype="float32",
        device="cpu",
        num_threads=1,
        num_kv_blocks=256,
        api_key=("admin", "user"),
        enable_lora=True,
        lora_modules=tuple(f"{name}={base}/adapters/{name}" for name in "abc"),
        max_loras=2,
    )
    has_come, params_for = asyncio.Event(), Adapters.params_for

    async def noted(self: Adapters, params: SamplingParams, **fields: Any) -> SamplingParams:
        if params.adapter == "b":
            asyncio.get_running_loop().call_later(0, has_come.set)
        return await params_for(self, params, **fields)

    monkeypatch.setattr(Adapters, "params_for", noted)
    app = build_app(settings)
    async with ready_client(app, headers=ADMIN) as client:
        body = GREEDY | {"model": "a", "max_tokens": 300, "n": 8, "stream": True}
        async with client.stream("POST", "/generate", json=body) as stream:
            assert stream.status_code == 200
            lines = stream.aiter_lines()  # kept: its end would close the stream
            await anext(lines)
            greedy_one = asyncio.create_task(tokens(client, model="b", max_tokens=300))
            await has_come.wait()
            answer = await client.post("/generate", json=GREEDY | {"model": "c"}, headers=WAIT | USER)
            assert answer.json()["token_ids"] == answers["c"]
            assert app.state.service.engine.stats()["num_running"] == 8, "the greedy key's first request still runs"
            assert not greedy_one.done()
        assert (await greedy_one)[:24] == answers["b"]


async def test_answers_that_are_kept_hold_no_place_of_an_adapter(files: tuple[Path, dict[str, list[int]]]) -> None:
    base, answers = files
    settings = Settings(
        model=str(base / "model"),
        dtype="float32",
        device="cpu",
        num_threads=1,
        num_kv_blocks=256,
        enable_lora=True,
        lora_modules=tuple(f"{name}={base}/adapters/{name}" for name in "abc"),
        max_loras=2,
    )
    app = build_app(settings)
    async with ready_client(app) as client:
        async with asyncio.timeout(50):
            for name in "abc":
                assert len(await tokens(client, model=name, receipt=True, temperature=1)) == 24
        assert await tokens(client, model="a") == answers["a"]


async def test_more_adapters_than_room_wait_for_each_other(world: World) -> None:
    assert (
        await world.client.post("/v1/load_lora_adapter", json={"lora_name": "c", "lora_path": "c"})
    ).status_code == 200
    names = ["a", "b", "c"] * 4
    found = await asyncio.gather(*(tokens(world.client, model=name) for name in names))
    assert found == [world.answers[name] for name in names]
    gc.collect()
    assert world.service.engine.part(Adapters).num_loaded <= 2
    for name in ("a", "b", "c"):
        await world.client.post("/v1/unload_lora_adapter", json={"lora_name": name})
    gc.collect()
    assert (await world.client.get("/stats")).json()["adapters"] == {"named": [], "num_loaded": 0, "bytes": 0}


async def test_an_adapters_answer_is_forked_with_it_or_with_another(world: World) -> None:
    client, answers = world.client, world.answers
    parent = (await client.post("/generate", json=GREEDY | {"model": "a"}, headers=WAIT)).json()
    index = world.service.results.index

    async def forked(**fields: Any) -> list[int]:
        accepted = (await client.post("/fork", json={"seq_id": parent["seq_id"], **fields})).json()
        found: list[int] = (await client.get(accepted["result_url"], params={"wait": 50})).json()["token_ids"]
        index.check()
        return found

    assert await forked(at=5) == answers["a"]
    assert await forked(at=0, model="b") == answers["b"]
    assert await forked(at=0, model="base") == answers[""]
    before = index.num_bytes
    scored = (await client.get(f"/result/{parent['seq_id']}/tokens", params={"top": 1})).json()["tokens"]
    assert [token["top"][0]["token_id"] for token in scored] == answers["a"]
    assert index.num_bytes > before, "scores are kept with the answer"
    index.check()
    assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "a"})).status_code == 200
    gone = await client.post("/fork", json={"seq_id": parent["seq_id"], "at": 5})
    assert (gone.status_code, "adapter" in gone.json()["error"]["message"]) == (400, True)
    await client.delete(f"/result/{parent['seq_id']}")
    index.check()
    assert (await client.post("/fork", json={"seq_id": parent["seq_id"]})).status_code == 404
