"""/v1/messages/batches, in the form that the `anthropic` package sends and reads."""

import asyncio
import json
from types import SimpleNamespace

import httpx
import pytest
from fake_engine import FakeEngine, answer_text
from serving import serving

from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

PATH = "/v1/messages/batches"
HELLO = [{"role": "user", "content": "Hello"}]
TEXT = answer_text("<user>Hello\n<assistant>", num_tokens=4)


def entry(custom_id, **params):
    return {"custom_id": custom_id, "params": {"messages": HELLO, "max_tokens": 4, **params}}


async def begin(served, *requests, status=200, **more):
    answer = await served.client.post(PATH, json={"requests": list(requests), **more})
    assert answer.status_code == status, answer.text
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    return answer.json()


async def ended(served, batch):
    async with asyncio.timeout(60):
        while batch["processing_status"] != "ended":
            await asyncio.sleep(0.01)  # its end can only be polled for
            batch = (await served.client.get(f"{PATH}/{batch['id']}")).json()
    return batch


async def results_of(served, batch):
    answer = await served.client.get(batch["results_url"])
    assert answer.headers["content-type"] == "application/x-jsonl"
    return {line["custom_id"]: line["result"] for line in map(json.loads, answer.text.splitlines())}


def counts(**numbers):
    return dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0) | numbers


async def test_a_batch_is_answered_request_by_request(served):
    batch = await begin(served, entry("a"), entry("b", temperature=9000), entry("c", model="gpt"), betas=["x"])
    assert batch["id"].startswith("msgbatch_")
    assert (batch["type"], batch["processing_status"]) == ("message_batch", "in_progress")
    assert (batch["request_counts"], batch["results_url"]) == (counts(processing=3), None)
    done = await ended(served, batch)
    assert done["request_counts"] == counts(succeeded=1, errored=2)
    assert done["created_at"] <= done["ended_at"] < done["expires_at"]
    found = await results_of(served, done)
    message = found["a"]["message"]
    assert (found["a"]["type"], message["type"], message["stop_reason"]) == ("succeeded", "message", "max_tokens")
    assert message["content"] == [{"type": "text", "text": TEXT}]
    errors = [found[name]["error"] for name in ("b", "c")]
    assert [found[name]["type"] for name in ("b", "c")] == ["errored"] * 2
    assert [error["error"]["type"] for error in errors] == ["invalid_request_error", "not_found_error"]
    assert all(error["type"] == "error" and error["request_id"] for error in errors)
    assert [params.is_background for params in served.engine.params] == [True]


async def test_a_cancelled_batch_keeps_the_answers_so_far(served):
    served.engine.hold()
    batch = await begin(served, entry("a"), entry("b"))
    await served.engine.submitted.wait()
    for path in (batch["id"] + "/results", batch["id"]):
        early = await served.client.request("DELETE" if path == batch["id"] else "GET", f"{PATH}/{path}")
        assert (early.status_code, early.json()["error"]["type"]) == (400, "invalid_request_error")
    cancelled = (await served.client.post(f"{PATH}/{batch['id']}/cancel")).json()
    assert cancelled["processing_status"] in ("canceling", "ended")
    done = await ended(served, batch)
    assert done["cancel_initiated_at"] is not None
    assert done["request_counts"] == counts(canceled=2)
    assert await results_of(served, done) == {name: {"type": "canceled"} for name in "ab"}


async def test_batches_are_listed_apart_from_those_of_files(served):
    batches = [await ended(served, await begin(served, entry("a"))) for _ in range(3)]
    ids = [batch["id"] for batch in reversed(batches)]

    async def page(**query):
        answer = (await served.client.get(PATH, params=query)).json()
        assert (answer["first_id"], answer["last_id"]) == (answer["data"][0]["id"], answer["data"][-1]["id"])
        return [batch["id"] for batch in answer["data"]], answer["has_more"]

    assert await page() == (ids, False)
    assert await page(limit=2) == (ids[:2], True)
    assert await page(after_id=ids[1]) == (ids[2:], False)
    assert await page(before_id=ids[2], limit=1) == (ids[1:2], True)
    assert (await served.client.get("/v1/batches")).json()["data"] == []
    deleted = await served.client.delete(f"{PATH}/{ids[1]}")
    assert deleted.json() == {"id": ids[1], "type": "message_batch_deleted"}
    assert await page() == ([ids[0], ids[2]], False)
    assert (await served.client.get(f"{PATH}/{ids[1]}/results")).status_code == 404
    assert len((await served.client.get("/v1/files")).json()["data"]) == 4, "its files are gone too"


async def test_another_process_goes_on_with_a_batch(tmp_path):
    settings, engine = Settings(results=str(tmp_path / "results.db"), drain_timeout=0.01), FakeEngine()
    engine.hold()
    app = build_app(settings, engine)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as client:
        await app.state.service.lifecycle.loading
        batch = (await client.post(PATH, json={"requests": [entry("a")]})).json()
        await engine.submitted.wait()
    app = build_app(settings, FakeEngine())
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as client:
        await app.state.service.lifecycle.loading
        served = SimpleNamespace(client=client)
        done = await ended(served, batch)
        assert (done["id"], done["request_counts"]) == (batch["id"], counts(succeeded=1))
        assert (await results_of(served, done))["a"]["message"]["content"][0]["text"] == TEXT


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([], "requests must hold at least one"),
        ([entry("a"), entry("a")], "requests[1].custom_id came before"),
        ([entry("a b")], "requests[0].custom_id must be"),
        ([{"custom_id": "a"}], "requests[0].params is missing"),
        ([entry("a", stream=True)], "requests[0].params.stream"),
        ([{**entry("a"), "prompts": 1}], "prompts"),
    ],
)
async def test_a_wrong_batch_is_refused(served, requests, said):
    answer = await begin(served, *requests, status=400)
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    assert said in answer["error"]["message"]


@pytest.mark.parametrize("settings", [Settings(api_key=("mine", "yours"))])
async def test_batches_are_their_owners(served):
    mine, yours = {"x-api-key": "mine"}, {"x-api-key": "yours"}
    headers = {**mine, "Idempotency-Key": "once"}
    body = {"requests": [entry("a")]}
    first, again = [await served.client.post(PATH, json=body, headers=headers) for _ in range(2)]
    assert first.json()["id"] == again.json()["id"]
    assert (again.headers["idempotent-replayed"], served.engine.num_submitted <= 1) == ("true", True)
    for method, end in (("GET", ""), ("GET", "/results"), ("POST", "/cancel"), ("DELETE", "")):
        other = await served.client.request(method, f"{PATH}/{first.json()['id']}{end}", headers=yours)
        assert (other.status_code, other.json()["error"]["type"]) == (404, "not_found_error")
    assert (await served.client.get(PATH, headers=yours)).json()["data"] == []
