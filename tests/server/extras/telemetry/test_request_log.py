"""Request log: a line for every request that has ended, whatever it was and however it ended, without its text."""

import asyncio
import json
import logging
import re

import httpx
import pytest
from serving import ServerProcess

from splitfuse.server.http.keys import digest
from splitfuse.server.settings import Settings

NAMES = {"ttft_s": "time_to_first_token_seconds", "queue_s": "request_queue_time_seconds"}
CHAT = {"messages": [{"role": "user", "content": "TEXT"}], "max_tokens": 3}


class Lines(logging.Handler):
    """Fields of lines to wait for: a line is written after its answer."""

    def __init__(self):
        super().__init__()
        self._queue = asyncio.Queue()

    def emit(self, record):
        self._queue.put_nowait(record.fields)

    async def __call__(self, number):
        """Return the next `number` lines, and check that there are no more."""
        async with asyncio.timeout(60):
            found = [await self._queue.get() for _ in range(number)]
        assert self._queue.empty()
        return found


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="splitfuse.requests")
    logger, handler = logging.getLogger("splitfuse.requests"), Lines()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_an_answer_is_a_line(served, lines, caplog):
    await served.client.post("/v1/chat/completions", json=CHAT, headers={"X-Request-Id": "mine"})
    (fields,) = await lines(1)
    assert fields.pop("total_s") >= fields.pop("ttft_s") >= fields.pop("queue_s") >= 0
    assert fields == {
        "route": "/v1/chat/completions", "status": 200, "finish_reason": "length",
        "prompt_tokens": len("<user>TEXT\n<assistant>"), "cached_tokens": 2, "output_tokens": 3, "id": "mine",
    }  # fmt: skip
    (line,) = caplog.messages
    assert line.startswith("route=/v1/chat/completions status=200 finish_reason=length total_s=")
    assert line.endswith(" id=mine")


async def test_a_submitted_prompt_is_a_line_when_its_job_ends(served, lines):
    served.engine.hold()
    url = (await served.client.post("/generate", json={"prompt": "x", "max_tokens": 2, "n": 2})).json()["result_url"]
    assert await lines(0) == []
    await served.engine.allow()
    await served.client.get(url + "?wait=60")
    (fields,) = await lines(1)
    assert (fields["route"], fields["status"], fields["output_tokens"]) == ("/generate", 202, 4)


async def test_several_prompts_are_one_line(served, lines):
    await served.client.post("/v1/completions", json={"prompt": ["ab", "c"], "max_tokens": 2})
    (fields,) = await lines(1)
    assert (fields["prompt_tokens"], fields["output_tokens"]) == (3, 4)


async def test_a_disconnect_is_told(served, lines):
    served.engine.hold()
    async with served.client.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}):
        await served.engine.submitted.wait()
    await served.engine.abort_seen.wait()
    (fields,) = await lines(1)
    assert (fields["status"], fields["finish_reason"]) == (200, "abort")


async def test_refusals_and_failures_are_told(served, lines):
    await served.client.post("/generate", json={"prompt": ""})
    await served.client.post("/v1/chat/completions", json={**CHAT, "model": "other"})
    served.engine.fail_at = 1
    await served.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3})
    served.engine.submit_error = RuntimeError("a bug")
    await served.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3})
    await served.client.post("/nowhere")
    assert [(fields["route"], fields["status"], fields.get("finish_reason")) for fields in await lines(5)] == [
        ("/generate", 400, None),
        ("/v1/chat/completions", 404, None),
        ("/v1/completions", 500, "error"),
        ("/v1/completions", 500, None),
        ("-", 404, None),
    ]


async def test_polls_and_probes_are_no_lines(served, lines):
    for path in ("/health", "/metrics", "/result/unknown", "/v1/models"):
        await served.client.get(path)
    assert await lines(0) == []


@pytest.mark.parametrize("settings", [Settings(api_key=("the-key",))])
async def test_nothing_secret_is_logged(served, lines, caplog):
    served.client.headers["Authorization"] = "Bearer the-key"
    posted = await served.client.post("/v1/responses", json={"input": "TEXT", "max_output_tokens": 2})
    await served.client.post(f"/v1/responses/{posted.json()['id']}/cancel")
    await served.client.post("/generate", json={"prompt": "TEXT", "stream": True, "user": "ann@example.com"})
    logged = await lines(3)
    assert [fields["route"] for fields in logged] == [
        "/v1/responses",
        "/v1/responses/{response_id}/cancel",
        "/generate",
    ]
    assert {fields["tenant"] for fields in logged} == {digest("the-key")[:12]}
    for secret in ("TEXT", "the-key", "ann@", posted.json()["id"][5:]):
        assert secret not in caplog.text


async def test_lines_of_a_batch_are_no_part_of_the_request_that_made_it(served, lines):
    body = {"custom_id": "1", "method": "POST", "url": "/generate", "body": {"prompt": "x", "max_tokens": 2}}
    form = {"file": ("f.jsonl", json.dumps(body).encode())}
    file = (await served.client.post("/v1/files", files=form, data={"purpose": "batch"})).json()
    made = {"input_file_id": file["id"], "endpoint": "/generate", "completion_window": "24h"}
    batch = (await served.client.post("/v1/batches", json=made)).json()
    while batch["status"] != "completed":
        batch = (await served.client.get(f"/v1/batches/{batch['id']}")).json()
    logged = await lines(2)
    assert [fields["route"] for fields in logged] == ["/v1/files", "/v1/batches"]
    assert "output_tokens" not in logged[1]


@pytest.mark.parametrize("settings", [Settings(request_log=False)])
async def test_without_a_request_log(served, lines):
    await served.client.post("/generate", json={"prompt": "x", "max_tokens": 2, "stream": True})
    assert await lines(0) == []


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_servers_output(log_format):
    import httpx

    with ServerProcess("demo", "--log-format", log_format, "--host", "0.0.0.0") as server:
        address = server.url
        body = {"prompt": "Once", "max_tokens": 2, "ignore_eos": True, "stream": True}
        httpx.post(f"{address}/generate", json=body, headers={"X-Request-Id": 'a b="c"'})
        server.signal()
        out, err = server.process.communicate(timeout=60)
    if log_format == "text":
        assert re.fullmatch(r'20\S+Z route=/generate status=200 .* output_tokens=2 .* id=a b="c"', out.splitlines()[-1])
        assert err.startswith("splitfuse: warning: listening on 0.0.0.0 without an API key")
        return
    logged = [json.loads(line) for line in (server.banner + out + err).splitlines()]
    assert all(entry["time"].endswith("Z") and entry["message"] for entry in logged)
    (request,) = [entry for entry in logged if entry["logger"] == "splitfuse.requests"]
    assert (request["id"], request["route"], request["output_tokens"]) == ('a b="c"', "/generate", 2)
    assert logged[0]["message"].endswith("is ready; Ctrl-C stops it")
    assert "demo" in logged[0]["model"]
    assert "tokens" in logged[0]["kv_cache"]
    assert [entry["level"] for entry in logged if "API key" in entry["message"]] == ["WARNING"]


def test_metrics_and_log_tell_one_truth() -> None:
    """The first chat had a time to first token of 0.6 s in the log, and of 0.009 s in the metrics."""
    with ServerProcess("demo") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.get("/v1/models").status_code == 200  # imports the routes
        assert all(client.post("/v1/chat/completions", json=CHAT).status_code == 200 for _ in range(20))
        assert client.get("/nope").status_code == 404
        text = client.get("/metrics").text
        server.signal()
        out, _ = server.process.communicate(timeout=60)
    logged = {name: [float(value) for value in re.findall(rf"{name}=([0-9.]+)", out)] for name in NAMES}
    assert {len(values) for values in logged.values()} == {20}
    for name, series in NAMES.items():
        (found,) = re.findall(rf"^splitfuse:{series}_sum.* ([0-9.e-]+)$", text, re.MULTILINE)
        assert sum(logged[name]) == pytest.approx(float(found), rel=0.05, abs=0.02), name
    route = "/v1/chat/completions"
    assert f'splitfuse:http_requests_total{{method="POST",route="{route}",status="200"}} 20.0' in text
    assert 'splitfuse:http_requests_total{method="GET",route="-",status="404"} 1.0' in text
    assert re.search(r"^process_resident_memory_bytes [0-9.e+]+$", text, re.MULTILINE)
    assert 'le="0.01"' in re.search(r"splitfuse:e2e_request_latency_seconds_bucket.*", text)[0]
