"""The native streams through a loopback socket: events, re-attaching, disconnects, slow and silent readers."""

import asyncio
import json

import httpx
import pytest
from fake_engine import answer_text
from serving import parse_events, stream_events

from splitfuse.engine.core.outputs import OutputDelta
from splitfuse.server.api.native.response import NativeStreamWriter
from splitfuse.server.api.streaming import JobEvents
from splitfuse.server.http.json_writer import JsonWriter
from splitfuse.server.jobs.job import Job
from splitfuse.server.settings import Settings

TIMINGS = {"queue_s", "ttft_s", "decode_s", "e2e_s", "tokens_per_s", "num_preemptions"}


async def submit(served, **fields):
    response = await served.client.post("/generate", json={"prompt": "hello", "max_tokens": 5, **fields})
    assert response.status_code == 202, response.text
    return response.json()


async def test_stream_has_ids_deltas_and_the_result(served):
    response = await served.client.post("/generate", json={"prompt": "hello", "max_tokens": 4, "stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    events = parse_events(response.text)
    assert [event["id"] for event in events] == ["0", "1", "2", "3", "4"]
    assert [event["event"] for event in events] == ["token"] * 4 + ["done"]
    text = answer_text("hello", num_tokens=4)
    assert [event["data"] for event in events[:4]] == [
        {"index": 0, "text": char, "token_ids": [ord(char)]} for char in text
    ]
    seq_id = response.headers["x-seq-id"]
    assert response.headers["location"] == f"/result/{seq_id}"
    assert events[4]["data"] == (await served.client.get(f"/result/{seq_id}")).json()


async def test_an_end_without_a_token_makes_no_event(served):
    served.engine.leave_out_last_token = True
    response = await served.client.post("/generate", json={"prompt": "hello", "max_tokens": 4, "stream": True})
    assert [event["event"] for event in parse_events(response.text)] == ["token"] * 4 + ["done"]


@pytest.mark.parametrize("settings", [Settings(stream_interval=4)])
async def test_stream_interval_gathers_tokens_after_the_first(served):
    response = await served.client.post("/generate", json={"prompt": "hello", "max_tokens": 10, "stream": True, "n": 2})
    events = parse_events(response.text)
    for index in range(2):
        parts = [e["data"]["text"] for e in events[:-1] if e["data"]["index"] == index]
        assert [len(part) for part in parts] == [1, 4, 4, 1]
        assert "".join(parts) == answer_text("hello", num_tokens=10, index=index)


@pytest.mark.parametrize("settings", [Settings(stream_interval=4)])
async def test_stream_interval_keeps_logprobs_and_ends_without_a_token(served):
    served.engine.leave_out_last_token = True
    fields = {"prompt": "hello", "max_tokens": 3, "stream": True, "logprobs": 1}
    response = await served.client.post("/generate", json=fields)
    events = parse_events(response.text)
    assert [len(event["data"]["token_ids"]) for event in events[:-1]] == [1, 2]
    assert [len(event["data"]["logprobs"]) for event in events[:-1]] == [1, 2]


async def test_a_disconnect_from_a_submitted_stream_cancels(served):
    served.engine.hold()
    async with served.client.stream(
        "POST", "/generate", json={"prompt": "hello", "max_tokens": 5, "stream": True}
    ) as stream:
        await served.engine.allow(2)
        await anext(stream_events(stream))
        seq_id = stream.headers["x-seq-id"]
    await asyncio.wait_for(served.engine.abort_seen.wait(), 60)
    assert served.engine.aborted == [seq_id]
    body = (await served.client.get(f"/result/{seq_id}?wait=60")).json()
    assert (body["status"], body["finish_reason"]) == ("cancelled", "abort")


async def test_a_disconnect_from_an_attached_stream_cancels_nothing(served):
    served.engine.hold()
    url = (await submit(served))["result_url"]
    async with served.client.stream("GET", url + "/stream") as stream:
        await served.engine.allow(1)
        await anext(stream_events(stream))
    await served.engine.allow()
    assert (await served.client.get(url + "?wait=60")).json()["status"] == "completed"
    assert served.engine.aborted == []


@pytest.mark.parametrize("by_header", [False, True])
@pytest.mark.parametrize("is_running", [False, True])
async def test_reattaching_from_every_cut_gives_the_rest(served, by_header, is_running):
    whole = parse_events(
        (await served.client.post("/generate", json={"prompt": "hello", "max_tokens": 6, "stream": True})).text
    )
    num_tokens = len(whole) - 1
    for cut in range(-1, len(whole) + 2):
        if is_running:
            served.engine.hold()
        url = (await submit(served, max_tokens=6))["result_url"]
        if is_running:
            await served.engine.allow(3)
        else:
            await served.client.get(url + "?wait=60")
        headers = {"Last-Event-ID": str(cut)} if by_header and cut >= 0 else {}
        query = f"?starting_after={cut}" if not by_header and cut >= 0 else ""
        reading = asyncio.create_task(served.client.get(url + "/stream" + query, headers=headers))
        if is_running:
            await served.engine.allow()
        rest = parse_events((await reading).text)
        assert [event["id"] for event in rest] == [str(i) for i in range(cut + 1, num_tokens + 1)]
        assert [event["data"] for event in rest][:-1] == [event["data"] for event in whole[cut + 1 : -1]]


async def test_last_event_id_is_younger_than_the_url(served):
    url = (await submit(served))["result_url"]
    response = await served.client.get(f"{url}/stream?starting_after=0", headers={"Last-Event-ID": "3"})
    assert [event["id"] for event in parse_events(response.text)] == ["4", "5"]


@pytest.mark.parametrize("value", ["-1", "abc", "1.5", "9" * 40, "٣"])
async def test_bad_position(served, value):
    url = (await submit(served))["result_url"]
    response = await served.client.get(f"{url}/stream", params={"starting_after": value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "starting_after"
    response = await served.client.get(f"{url}/stream", headers={"Last-Event-ID": value.encode()})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "Last-Event-ID"


async def test_a_reader_of_a_deleted_job_sees_its_end(served):
    served.engine.hold()
    url = (await submit(served))["result_url"]
    async with served.client.stream("GET", url + "/stream") as stream:
        events = stream_events(stream)
        await served.engine.allow(1)
        await anext(events)
        await served.client.delete(url)
        last = await anext(events)
    assert (last["event"], last["data"]["status"]) == ("done", "cancelled")


async def test_a_slow_reader_delays_no_other(served):
    """A reader that does not read gets its events later in few writes; the engine runs on meanwhile."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(served.url).port, limit=2**20)
    body = json.dumps({"prompt": "hello", "max_tokens": 400, "stream": True}).encode()
    writer.write(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    head = await reader.readuntil(b"\r\n\r\n")
    seq_id = head.split(b"x-seq-id: ")[1].split(b"\r\n")[0].decode()
    result = (await served.client.get(f"/result/{seq_id}?wait=60")).json()
    assert result["usage"]["completion_tokens"] == 400
    raw = await reader.readuntil(b"0\r\n\r\n")
    assert raw.count(b"event: token") == 400
    writer.close()
    await writer.wait_closed()


async def test_what_came_since_the_last_write_goes_in_one_write():
    job = Job("id", model="m")
    chunks = JobEvents([job], NativeStreamWriter(job, JsonWriter(max_shared_bytes=1))).chunks()
    for position in range(4):
        job.sink(OutputDelta("id", 0, "x", (position,)))
    assert len(parse_events((await anext(chunks)).decode())) == 4
    waiting = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    job.sink(OutputDelta("id", 0, "x", (4,)))
    job.sink(OutputDelta("id", 0, "x", (5,)))
    assert len(parse_events((await waiting).decode())) == 2
    for position in range(1000):
        job.sink(OutputDelta("id", 0, "x", (position,), finish_reason="length" if position == 999 else None))
    sizes = [len(parse_events(chunk.decode())) for chunk in [chunk async for chunk in chunks]]
    assert sizes == [512, 488, 1]  # in bounded slices, so that other streams get their turn


async def test_ping_keeps_a_silent_stream_open(served, monkeypatch):
    monkeypatch.setattr("splitfuse.server.api.streaming.PING_S", 0.02)
    served.engine.hold()
    url = (await submit(served))["result_url"]
    async with served.client.stream("GET", url + "/stream") as stream:
        parts = stream.aiter_text()
        assert await anext(parts) == ": ping\n\n"
        assert await anext(parts) == ": ping\n\n"
        await served.engine.allow()
        rest = "".join([part async for part in parts])
        assert "event: token" in rest
