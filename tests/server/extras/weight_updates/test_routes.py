"""Weights change under streams, and the engine pauses and sleeps, by requests of an admin."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from serving import SlowSteps, parse_events, ready_client
from shared_cores import CpuWait

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.config.named_models import DEMO_FOLDER
from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

ADMIN, USER = {"Authorization": "Bearer admin"}, {"Authorization": "Bearer user"}
NUM_SWAPS = int(os.environ.get("SPLITFUSE_TEST_SWAPS", "3"))
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of the demo's draft model, and of other weights for it; the second one has no config.json."""
    base = tmp_path_factory.mktemp("weights")
    shutil.copytree(DEMO_FOLDER / "draft", base / "old")
    for path in DEMO_FOLDER.glob("*token*"):
        shutil.copy(path, base / "old")
    shutil.copy(DEMO_FOLDER / "chat_template.jinja", base / "old")
    (base / "new").mkdir()
    tensors = load_file(base / "old" / "model.safetensors")
    torch.manual_seed(0)
    moved = {name: tensor + 0.02 * torch.randn(tensor.shape) for name, tensor in tensors.items()}
    save_file(moved, base / "new" / "model.safetensors")
    return [base / "old", base / "new"]


@pytest.fixture
async def client(folders: list[Path]) -> AsyncIterator[httpx.AsyncClient]:
    """Client of a server with the demo model, as its admin."""
    settings = Settings(
        model=str(folders[0]), dtype="float32", device="cpu", num_threads=1, num_kv_blocks=256, max_num_seqs=16,
        max_num_batched_tokens=64, api_key=("user",), admin_key=("admin",), weights_dir=str(folders[0].parent),
    )  # fmt: skip
    app = build_app(settings)
    async with ready_client(app, headers=ADMIN) as client:
        yield client


@pytest.fixture(scope="module")
def models(folders: list[Path]) -> Iterator[list[LLM]]:
    """Engines of the two versions: the weights' version modulo 2 is the index."""
    llms = [LLM(str(folders[0]), dtype="float32", device="cpu", num_kv_blocks=256) for _ in range(2)]
    llms[1].update_weights(folders[1])
    yield llms
    for llm in llms:
        llm.close()


def next_tokens(llm: LLM, prompts: list[list[int]]) -> list[int]:
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    return [output.outputs[0].token_ids[0] for output in outputs]


async def test_swaps_under_sixteen_streams_lose_nothing(
    client: httpx.AsyncClient, folders: list[Path], models: list[LLM]
) -> None:
    is_over = asyncio.Event()
    results: list[dict[str, Any]] = []

    async def stream(number: int) -> None:
        while not is_over.is_set():
            body = {"prompt": [20 + number, 30, 40], "stream": True, "return_token_ids": True, **GREEDY}
            answer = await client.post("/generate", json=body)
            events = parse_events(answer.text)
            tokens = [token for event in events[:-1] for token in event["data"]["token_ids"]]
            assert tokens == events[-1]["data"]["token_ids"]
            results.append(events[-1]["data"])

    streams = [asyncio.create_task(stream(number)) for number in range(16)]
    with CpuWait() as wait:
        for version in range(1, NUM_SWAPS + 1):
            answer = await client.post("/weights", json={"path": str(folders[version % 2])})
            assert answer.json()["weights_version"] == version, answer.text
            assert answer.json()["hold_s"] < 0.5 * wait.factor
    is_over.set()
    await asyncio.gather(*streams)
    assert {result["status"] for result in results} == {"completed"}
    assert all(len(result["token_ids"]) == GREEDY["max_tokens"] for result in results)
    seen = {result["weights_version"] for result in results} | {r.get("first_weights_version") for r in results}
    assert len(seen - {None}) > 1
    for index, llm in enumerate(models):
        last = [r for r in results if r["weights_version"] % 2 == index]
        first = [r for r in results if r.get("first_weights_version", r["weights_version"]) % 2 == index]
        before = [r["prompt_token_ids"] + r["token_ids"][:-1] for r in last]
        assert next_tokens(llm, before) == [r["token_ids"][-1] for r in last]
        assert next_tokens(llm, [r["prompt_token_ids"] for r in first]) == [r["token_ids"][0] for r in first]
    for path in ("/version", "/stats"):
        assert (await client.get(path)).json()["weights_version"] == NUM_SWAPS


async def test_openai_answers_carry_the_version_and_take_token_ids(
    client: httpx.AsyncClient, folders: list[Path]
) -> None:
    await client.post("/weights", json={"path": "new"})
    prompt, fields = [30, 31, 32], {"max_tokens": 3, "temperature": 0, "return_token_ids": True}
    chat = {"messages": [{"role": "user", "content": "unused"}], "prompt_token_ids": prompt, **fields}
    answers = [
        (await client.post("/v1/completions", json={"prompt": prompt, **fields})).json(),
        (await client.post("/v1/chat/completions", json=chat)).json(),
    ]
    assert [answer["weights_version"] for answer in answers] == [1, 1]
    assert answers[1]["prompt_token_ids"] == answers[0]["choices"][0]["prompt_token_ids"] == prompt
    assert answers[0]["choices"][0]["token_ids"] == answers[1]["choices"][0]["token_ids"]
    streamed = await client.post("/v1/chat/completions", json={**chat, "stream": True})
    chunks = [event["data"] for event in parse_events(streamed.text)]
    assert chunks[-2]["weights_version"] == 1
    assert "weights_version" not in chunks[0]
    refused = await client.post("/v1/chat/completions", json={**chat, "prompt_token_ids": [1, True]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_token_ids")


RECEIPTS: dict[str, dict[str, Any]] = {
    "/generate": {"prompt": [30, 31], **GREEDY},
    "/v1/completions": {"prompt": [30, 31], **GREEDY},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/v1/responses": {"input": "hi", "max_output_tokens": 16},
}


async def test_receipts_name_the_weights_that_answered(client: httpx.AsyncClient) -> None:
    async def answers() -> dict[str, dict[str, Any]]:
        headers = {"Prefer": "wait=30"}
        sent = {path: {**body, "receipt": True} for path, body in RECEIPTS.items()}
        return {path: (await client.post(path, json=body, headers=headers)).json() for path, body in sent.items()}

    async def verdict(receipt: dict[str, Any]) -> tuple[int, Any]:
        checked = await client.post("/verify", json={"receipt": receipt})
        return checked.status_code, checked.json().get("valid", checked.json().get("error", {}).get("code"))

    before = await answers()
    for path, answer in before.items():
        assert (answer["weights_version"], await verdict(answer["receipt"])) == (0, (200, True)), path
    await client.post("/weights", json={"path": "new"})
    for path, answer in (await answers()).items():
        assert (answer["weights_version"], await verdict(answer["receipt"])) == (1, (200, True)), path
        assert await verdict(before[path]["receipt"]) == (400, "other_weights"), path
    first = before["/generate"]
    stored = (await client.get(f"/result/{first['seq_id']}")).json()
    assert (stored["receipt"], stored["weights_version"]) == (first["receipt"], 0)


async def test_an_answer_of_two_versions_has_no_receipt(slow_here: SlowSteps, client: httpx.AsyncClient) -> None:
    body = {"prompt": [50, 51], **GREEDY, "max_tokens": 200, "receipt": True}
    url = (await client.post("/generate", json=body)).json()["result_url"]
    while not (await client.get(url)).json()["token_ids"]:
        pass
    await client.post("/pause")
    await client.post("/weights", json={"path": "new"})
    slow_here.off()
    await client.post("/resume")
    result = (await client.get(url, params={"wait": 30})).json()
    assert (result["first_weights_version"], result["weights_version"], result["receipt"]) == (0, 1, None)


@pytest.mark.parametrize("way", ["/pause", "/sleep?level=1", "/sleep?level=2"])
async def test_requests_wait_while_the_engine_rests(client: httpx.AsyncClient, way: str) -> None:
    expected = (await client.post("/v1/completions", json={"prompt": "Once", **GREEDY})).json()["choices"]
    reason, wake_up = ("paused", "/resume") if way == "/pause" else ("sleeping", "/wake_up")
    assert (await client.post(way)).json()["paused"] == reason
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()["error"]["code"]) == (503, reason)
    assert (await client.get("/health")).status_code == 200
    assert (await client.get("/is_sleeping")).json() == {"is_sleeping": reason == "sleeping"}
    assert (await client.get("/is_paused")).json() == {"is_paused": True}
    waiting = asyncio.create_task(client.post("/v1/completions", json={"prompt": "Once", **GREEDY}))
    timed_out = await client.post("/v1/completions", json={"prompt": "Once", "timeout_ms": 1, **GREEDY})
    assert timed_out.json()["choices"][0]["stop_reason"] == "timeout"
    assert not waiting.done()
    assert (await client.post(wake_up)).json()["paused"] is None
    assert (await waiting).json()["choices"] == expected
    assert (await client.get("/ready")).status_code == 200


@pytest.mark.parametrize(("mode", "reason"), [("wait", "length"), ("abort", "abort"), ("keep", "length")])
async def test_modes_of_running_requests(
    slow_here: SlowSteps, client: httpx.AsyncClient, mode: str, reason: str
) -> None:
    body = {"prompt": [50, 51], **GREEDY, "max_tokens": 200}
    url = (await client.post("/generate", json=body)).json()["result_url"]
    while not (await client.get(url)).json()["token_ids"]:
        pass
    if mode == "wait":
        slow_here.off()
    else:  # the request cannot end while the weights are read
        await client.post("/pause")
    assert (await client.post("/weights", json={"path": "new", "mode": mode})).status_code == 200
    slow_here.off()
    await client.post("/resume")
    result = (await client.get(url, params={"wait": 60})).json()
    assert result["finish_reason"] == reason
    assert result["weights_version"] == (1 if mode == "keep" else 0)
    assert result.get("first_weights_version") == (0 if mode == "keep" else None)
    later = await client.post("/generate", json={**body, "max_tokens": 1}, headers={"Prefer": "wait=60"})
    assert later.json()["weights_version"] == 1


async def test_wrong_paths_and_other_keys_change_nothing(client: httpx.AsyncClient, folders: list[Path]) -> None:
    (folders[0].parent / "link").symlink_to("/etc")
    for path, message in [
        *((path, "within the server's --weights-dir") for path in ("../../etc", "/etc", "link")),
        *(("missing", "no folder or file"), ("a\0b", "cannot be read"), (".", "neither model.safetensors nor")),
    ]:
        answer = await client.post("/weights", json={"path": path})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "path"), error
        assert message in error["message"]
        assert "\n" not in error["message"]
    for path in ("/weights", "/pause", "/resume", "/sleep", "/wake_up"):
        assert (await client.post(path, json={"path": "new"}, headers=USER)).status_code == 403, path
    assert (await client.get("/version")).json()["weights_version"] == 0


@pytest.mark.parametrize("settings", [Settings(host="0.0.0.0")])
async def test_without_keys_only_this_machine_may(served: Any) -> None:
    assert (await served.client.post("/weights", json={"path": "/"})).status_code == 403


async def test_an_answer_of_other_weights_is_not_forked(client: httpx.AsyncClient, folders: list[Path]) -> None:
    body = {"prompt": [20, 30, 40], **GREEDY}
    parent = (await client.post("/generate", json=body, headers={"Prefer": "wait=60"})).json()
    fork, tokens = {"seq_id": parent["seq_id"], "at": 3}, f"/result/{parent['seq_id']}/tokens"
    again = (await client.post("/fork", json=fork)).json()
    result = (await client.get(again["result_url"], params={"wait": 60})).json()
    assert result["token_ids"] == parent["token_ids"]
    assert (await client.get(tokens)).json()["num_tokens"] == 24
    for answer in (await client.post("/fork", json=fork, headers=USER), await client.get(tokens, headers=USER)):
        assert answer.status_code == 404, "another key's answer"
    await client.post("/weights", json={"path": str(folders[1])})
    for answer in (await client.post("/fork", json=fork), await client.get(tokens)):
        assert answer.status_code == 400
        assert "weights" in answer.json()["error"]["message"]
