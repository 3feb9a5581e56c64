"""Idempotency keys: a request that comes again is answered with the job that it made before, and runs once."""

import asyncio
from pathlib import Path

import httpx
from serving import ServerProcess, parse_events

BODY = {"prompt": "hello", "max_tokens": 5}


def key(name="k1"):
    return {"Idempotency-Key": name}


async def test_the_same_request_again_is_the_same_job(served):
    first = await served.client.post("/generate", json=BODY, headers=key())
    assert "idempotent-replayed" not in first.headers
    again = await served.client.post("/generate", json=dict(reversed(BODY.items())), headers=key())
    assert (again.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert again.json()["seq_id"] == first.json()["seq_id"]
    assert again.headers["location"] == first.headers["location"]
    other = await served.client.post("/generate", json=BODY, headers=key("k2"))
    assert other.json()["seq_id"] != first.json()["seq_id"]
    served.service.results.check()


async def test_another_body_is_refused(served):
    await served.client.post("/generate", json=BODY, headers=key())
    refused = await served.client.post("/generate", json={**BODY, "max_tokens": 6}, headers=key())
    assert refused.status_code == 422
    assert refused.json()["error"]["code"] == "idempotency_key_reused"
    assert refused.json()["error"]["type"] == "invalid_request_error"


async def test_a_hundred_at_once_are_one_job(served):
    posts = [served.client.post("/generate", json=BODY, headers=key()) for _ in range(100)]
    answers = await asyncio.gather(*posts)
    assert len({answer.json()["seq_id"] for answer in answers}) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 99
    assert len(served.service.results) == 1


async def test_a_wrong_field_is_told_before_a_reused_key(served):
    for route, body in (("/generate", BODY), ("/v1/responses", {"input": "hello"})):
        await served.client.post(route, json=body, headers=key(route))
        refused = await served.client.post(route, json=body | {"temperature": "high"}, headers=key(route))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")


async def test_a_refused_request_does_not_use_the_key_up(served):
    refused = await served.client.post("/generate", json={**BODY, "n": 100}, headers=key())
    assert refused.status_code == 400
    assert (await served.client.post("/generate", json=BODY, headers=key())).status_code == 202


async def test_a_stream_again_is_the_same_stream_from_its_beginning(served):
    first = await served.client.post("/generate", json={**BODY, "stream": True}, headers=key())
    again = await served.client.post("/generate", json={**BODY, "stream": True}, headers=key())
    assert parse_events(first.text) == parse_events(again.text)
    assert len(served.service.results) == 1


async def test_a_deleted_job_frees_its_key(served):
    first = (await served.client.post("/generate", json=BODY, headers=key())).json()
    await served.client.delete(first["result_url"])
    again = await served.client.post("/generate", json=BODY, headers=key())
    assert again.json()["seq_id"] != first["seq_id"]
    served.service.results.check()


async def test_a_key_that_is_none_and_two_keys_are_refused(served):
    for header in ("", "x" * 256, "ключ".encode(), b"a\x07b"):
        answer = await served.client.post("/generate", json=BODY, headers=[("Idempotency-Key", header)])
        assert answer.status_code == 400, header
    two = [("Idempotency-Key", "k1"), ("Idempotency-Key", "k2")]
    for path, body in (("/generate", {"prompt": "x"}), ("/v1/responses", {"input": "x"})):
        answer = await served.client.post(path, json=body, headers=two)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key"), path
    assert not served.engine.num_submitted


async def test_responses_take_keys_too(served):
    body = {"input": "hello", "max_output_tokens": 5}
    answers = [await served.client.post("/v1/responses", json=body, headers=key()) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    assert answers[0].json() == answers[1].json()
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert (await served.client.post("/generate", json=BODY, headers=key())).status_code == 422, "of another path"


def test_a_key_is_known_after_a_crash(tmp_path: Path) -> None:
    args = ("--dtype", "float32", "--results", str(tmp_path / "results.db"))
    body = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
    background = {"input": "hello", "background": True, "max_output_tokens": 20, "temperature": 0}
    with ServerProcess(*args) as server:
        running = httpx.post(f"{server.url}/generate", json=body, headers=key()).json()
        response = httpx.post(f"{server.url}/v1/responses", json=background, headers=key("k2"), timeout=60).json()
        server.process.kill()
    with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        again = client.post("/generate", json=body, headers=key())
        assert (again.json()["seq_id"], again.headers["idempotent-replayed"]) == (running["seq_id"], "true")
        assert client.post("/generate", json={**body, "n": 2}, headers=key()).status_code == 422
        assert client.get(f"{running['result_url']}?wait=60").json()["status"] == "completed"
        assert client.post("/v1/responses", json=background, headers=key("k2")).json()["id"] == response["id"]
        while (answer := client.get(f"/v1/responses/{response['id']}").json())["status"] in ("queued", "in_progress"):
            pass
        events = client.get(f"/v1/responses/{response['id']}?stream=true").text
    with ServerProcess(*args) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.post("/generate", json=body, headers=key()).json()["seq_id"] == running["seq_id"]
        assert client.get(f"/v1/responses/{response['id']}").json() == answer
        assert client.get(f"/v1/responses/{response['id']}?stream=true").text == events
