"""Several models behind one port: answers as without swaps, whoever asks and whatever dies; states, keys, fairness."""

import asyncio
import json
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import ServerProcess, one_line, parse_events, run_cli

from splitfuse.engine.config.named_models import DEMO_FOLDER

NAMES = ("splitfuse-demo-5m", "demo-draft")
FLAGS = ("--num-kv-blocks", "256", "--max-batch-requests", "4")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the demo, and its smaller sibling with a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "demo-draft"
    shutil.copytree(DEMO_FOLDER / "draft", folder)
    shutil.copy(DEMO_FOLDER / "tokenizer.json", folder)
    return "demo", str(folder)


@pytest.fixture(scope="module")
def swapping(models: tuple[str, str]) -> Iterator[ServerProcess]:
    with ServerProcess(*models, "--models-max", "1", "--model-turn", "0.5", *FLAGS) as server:
        yield server


@pytest.fixture
async def client(swapping: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=swapping.url, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def expected(models: tuple[str, str]) -> dict[tuple[str, int], str]:
    """Texts of servers of one model each, by name and seed."""
    texts = {}
    for model, name in zip(models, NAMES, strict=True):
        with ServerProcess(model, "--num-kv-blocks", "256") as server, httpx.Client(base_url=server.url) as client:
            for seed in range(4):
                answer = client.post("/v1/completions", json=body_of(name, seed), timeout=60)
                texts[name, seed] = answer.json()["choices"][0]["text"]
    assert len(set(texts.values())) == len(texts)
    return texts


def body_of(name: str, seed: int) -> dict[str, Any]:
    return {"model": name, "prompt": "Once upon a time", "max_tokens": 12, "seed": seed, "ignore_eos": True}


async def text_of(client: httpx.AsyncClient, way: str, name: str, seed: int) -> str:
    """Ask in one of four ways."""
    body = body_of(name, seed)
    if way == "plain":
        return str((await answered(client, "/v1/completions", body))["choices"][0]["text"])
    if way == "waited":
        job = await answered(client, "/generate", body)
        result: dict[str, Any] = {"status": "queued"}
        while result["status"] in ("queued", "running"):
            answer = await client.get(f"{job['result_url']}?wait=30")
            assert answer.status_code in (200, 503), answer.text
            result = answer.json() if answer.status_code == 200 else result
        return str(result["text"])
    if way == "streamed":
        answer = await client.post("/generate", json=body | {"stream": True, "durable": True})
        return str(parse_events(answer.text)[-1]["data"]["text"])
    answer = await client.post("/v1/completions", json=body | {"stream": True})
    events = parse_events(answer.text)
    assert events.pop()["data"] == "[DONE]"
    return "".join(event["data"]["choices"][0]["text"] for event in events)


async def answered(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code in (200, 202), answer.text
    fields: dict[str, Any] = answer.json()
    return fields


async def states(client: httpx.AsyncClient) -> dict[str, str]:
    return {entry["id"]: entry["state"] for entry in (await client.get("/v1/models")).json()["data"]}


def pids_of(server: ServerProcess) -> list[int]:
    """Processes of the models' servers."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"splitfuse.server\0serve" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_mixed_requests_of_several_clients_get_the_bits_of_unswapped_runs(
    client: httpx.AsyncClient, expected: dict[tuple[str, int], str]
) -> None:
    async def talk(number: int) -> None:
        draw = random.Random(number)
        for _ in range(3):
            way, key = draw.choice(["plain", "waited", "streamed", "deltas"]), draw.choice(list(expected))
            assert await text_of(client, way, *key) == expected[key]

    await asyncio.gather(*map(talk, range(6)))
    assert sorted((await states(client)).values())[-1] in ("unloaded", "unloading")
    assert len((await client.get("/api/ps")).json()["models"]) <= 1
    assert [entry["name"] for entry in (await client.get("/api/tags")).json()["models"]] == [*NAMES]


async def test_a_kept_result_outlives_its_models_stay(client: httpx.AsyncClient) -> None:
    job = await answered(client, "/generate", body_of(NAMES[1], 1))
    await answered(client, "/v1/completions", body_of(NAMES[0], 1))  # its turn comes when the job has ended
    assert (await states(client))[NAMES[1]] != "loaded"
    result = (await client.get(job["result_url"])).json()
    assert (result["status"], len(result["token_ids"])) == ("completed", 12)
    assert (await states(client))[NAMES[1]] == "loaded"


async def test_a_killed_process_loses_and_doubles_nothing(
    client: httpx.AsyncClient, swapping: ServerProcess, expected: dict[tuple[str, int], str]
) -> None:
    is_over = asyncio.Event()

    async def kill() -> None:
        draw = random.Random(1)
        for _ in range(4):
            for pid in pids_of(swapping):
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(2 + draw.random())
        is_over.set()

    async def talk(number: int) -> None:
        draw = random.Random(number)
        while not is_over.is_set():
            way, key = draw.choice(["plain", "waited"]), draw.choice(list(expected))
            assert await text_of(client, way, *key) == expected[key]

    async with asyncio.timeout(200):
        await asyncio.gather(kill(), talk(1), talk(2), talk(3))


async def test_a_greedy_client_of_one_model_keeps_no_other_waiting(client: httpx.AsyncClient) -> None:
    is_over = asyncio.Event()

    async def be_greedy() -> None:
        while not is_over.is_set():
            await answered(client, "/v1/completions", body_of(NAMES[0], 1))

    greedy = [asyncio.create_task(be_greedy()) for _ in range(4)]
    await answered(client, "/v1/completions", body_of(NAMES[0], 1))
    async with asyncio.timeout(60):
        await answered(client, "/v1/completions", body_of(NAMES[1], 1))
    is_over.set()
    await asyncio.gather(*greedy)


async def test_names_and_mistakes(client: httpx.AsyncClient) -> None:
    nameless = await answered(client, "/v1/completions", {"prompt": "Once", "max_tokens": 2})
    assert nameless["model"] == NAMES[0]
    unknown = await client.post("/v1/chat/completions", json={"model": "demo-draught", "messages": []})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert "did you mean 'demo-draft'?" in unknown.json()["error"]["message"]
    assert "demo-draft" in (await client.post("/api/chat", json={"model": "x", "messages": []})).json()["error"]
    broken = await client.post("/generate", content=b'{"prompt": ')
    assert (broken.status_code, broken.json()["error"]["type"]) == (400, "invalid_request_error")
    missing = await client.get("/result/unknown")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "result_not_found")
    assert (await client.get("/v1/models/demo-draft")).json()["id"] == "demo-draft"
    anthropic = (await client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})).json()
    assert (anthropic["first_id"], anthropic["data"][1]["type"]) == (NAMES[0], "model")
    assert (await client.get("/v1/models/none")).status_code == 404


async def test_a_file_and_its_batch_stay_with_their_model(client: httpx.AsyncClient) -> None:
    line = (
        b'{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 3}}'
    )
    sent = await client.post(
        "/v1/files?model=demo-draft", files={"file": ("lines.jsonl", line)}, data={"purpose": "batch"}
    )
    body = {"input_file_id": sent.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = await answered(client, "/v1/batches", body)
    await answered(client, "/v1/completions", body_of(NAMES[0], 1))  # waits for the batch
    batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
    assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    output = (await client.get(f"/v1/files/{batch['output_file_id']}/content")).json()
    assert output["response"]["body"]["model"] == "demo-draft"


async def test_a_batch_gives_way_to_another_model_and_goes_on(client: httpx.AsyncClient) -> None:
    fields = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}
    lines = [
        json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": fields})
        for number in range(2000)
    ]
    sent = await client.post(
        "/v1/files?model=demo-draft", files={"file": ("lines.jsonl", "\n".join(lines))}, data={"purpose": "batch"}
    )
    body = {"input_file_id": sent.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = await answered(client, "/v1/batches", body)
    await answered(client, "/v1/completions", body_of(NAMES[0], 1))
    batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
    assert batch["status"] == "in_progress"
    num_before = num_completed = batch["request_counts"]["completed"]
    while num_completed == num_before:  # it goes on
        num_completed = (await client.get(f"/v1/batches/{batch['id']}")).json()["request_counts"]["completed"]
    await answered(client, f"/v1/batches/{batch['id']}/cancel", {})
    while (batch := (await client.get(f"/v1/batches/{batch['id']}")).json())["status"] == "cancelling":
        pass
    output = (await client.get(f"/v1/files/{batch['output_file_id']}/content")).text
    answers = [json.loads(line)["custom_id"] for line in output.splitlines()]
    assert num_completed <= len(answers) == len({*answers}) < len(lines)


async def test_a_second_visit_after_two_swaps_computes_what_is_new(client: httpx.AsyncClient) -> None:
    said = "Once upon a time there was a little town by the sea. " * 30
    first = await answered(client, "/v1/completions", body_of(NAMES[0], 1) | {"prompt": said})
    await answered(client, "/v1/completions", body_of(NAMES[1], 1))
    more = said + first["choices"][0]["text"] + " And then"
    usage = (await answered(client, "/v1/completions", body_of(NAMES[0], 1) | {"prompt": more}))["usage"]
    assert usage["prompt_tokens"] > 400
    assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] < 40


def test_keys_guard_the_models_and_admins_load_and_unload_them(models: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one-key-of-many\nanother-key\n")
    flags = (
        "--api-key-file",
        str(tmp_path / "keys"),
        "--admin-key",
        "the-admins-key",
        "--results",
        str(tmp_path / "kept"),
    )
    with ServerProcess(*models, "--idle-unload", "0.2", *flags) as server:
        admin = {"Authorization": "Bearer the-admins-key"}
        with httpx.Client(base_url=server.url, timeout=60, headers={"Authorization": "Bearer another-key"}) as client:
            assert httpx.post(f"{server.url}/generate", json={"prompt": "x"}).status_code == 401
            assert httpx.get(f"{server.url}/v1/models").status_code == 401
            assert {httpx.get(f"{server.url}/{path}").status_code for path in ("health", "ready", "version")} == {200}
            assert client.get("/stats").json()["num_running"] == 0
            assert client.post("/models/load", json={"model": "demo-draft"}).status_code == 403
            assert {entry["state"] for entry in client.get("/models").json()["data"]} == {"unloaded"}
            job = client.post("/generate", json=body_of("demo-draft", 1)).json()
            other = client.get(job["result_url"], headers={"Authorization": "Bearer one-key-of-many"})
            assert other.status_code == 404
            assert client.get(f"{job['result_url']}?wait=30").json()["status"] == "completed"
            while client.get("/models").json()["data"][1]["state"] != "unloaded":
                pass
            metrics = client.get("/metrics", headers=admin).text
            assert 'replica_up{replica="demo-draft"} 0.0' in metrics
            loaded = client.post("/models/load", json={"model": "demo-draft"}, headers=admin).json()
            assert loaded["state"] == "loading"
        assert len(list((tmp_path / "kept").glob("*.db"))) == 1
        server.signal()
        assert server.wait()[0] == 0


async def test_a_model_that_cannot_be_loaded_fails_its_own_requests(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF and nothing more")
    with ServerProcess("demo", str(tmp_path / "broken.gguf")) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            broken, fine = await asyncio.gather(
                client.post("/v1/completions", json={"model": "broken", "prompt": "Once", "max_tokens": 2}),
                client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 2}),
            )
            assert (broken.status_code, broken.json()["error"]["code"]) == (503, "failed")
            assert "model broken cannot be loaded" in broken.json()["error"]["message"]
            assert fine.status_code == 200
            assert (await states(client))["broken"] == "failed"


async def test_ollamas_keep_alive_loads_and_unloads(client: httpx.AsyncClient) -> None:
    await answered(client, "/api/generate", {"model": "demo-draft", "keep_alive": "10m"})
    (running,) = (await client.get("/api/ps")).json()["models"]
    assert (running["name"], running["expires_at"] < "9999") == ("demo-draft", True)
    gone = await answered(client, "/api/generate", {"model": "demo-draft", "keep_alive": 0})
    assert gone["done_reason"] == "unload"
    async with asyncio.timeout(60):
        while (await client.get("/api/ps")).json()["models"]:  # noqa: ASYNC110 - the server tells no event
            await asyncio.sleep(0.05)


def test_mistakes_at_the_start_are_one_line() -> None:
    one_line(run_cli("serve", "demo", "nowhere.gguf"), "nowhere.gguf")
    one_line(run_cli("serve", "demo", "demo-draft", "--replicas", "2"), "--replicas does not work with several models")
    one_line(run_cli("unload", "demo", "--url", "http://127.0.0.1:1"), "demo was not unloaded")
