"""Prompts that are far too long, many at once: refused by their length, and they cost their neighbours nothing."""

import asyncio
import time

import pytest
from shared_cores import CpuWait

LONG = "zq" * 450_000  # takes 0.5 s to tokenize, and 140 MB
ROUTES = {
    "/generate": ({"prompt": LONG}, "prompt"),
    "/v1/completions": ({"prompt": LONG}, "prompt"),
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": LONG}]}, "messages"),
    "/v1/responses": ({"input": LONG}, "input"),
}


def peak_bytes(process_id):
    with open(f"/proc/{process_id}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


@pytest.fixture(autouse=True)
def cpu_wait():
    with CpuWait() as wait:
        yield wait


async def small(live):
    """Return the seconds to a token."""
    start = time.monotonic()
    response = await live.post("/v1/completions", json={"prompt": "Once", "max_tokens": 1})
    assert response.status_code == 200
    return time.monotonic() - start


@pytest.mark.parametrize("route", ROUTES)
async def test_neighbours_of_long_prompts_wait_for_none(live, live_server, route, cpu_wait):
    body, param = ROUTES[route]
    assert (await live.post(route, json=body)).status_code == 400
    before = peak_bytes(live_server.process.pid)
    work = asyncio.gather(*(live.post(route, json=body) for _ in range(16)))
    seconds = await small(live)
    while not work.done():
        seconds = max(seconds, await small(live))
    assert seconds < 2.0 * cpu_wait.factor
    for response in await work:
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)
        assert error["message"].startswith("This model's maximum context length is "), "clients know it by these words"
        assert "the prompt has at least 69" in error["message"], "13 characters are the longest token"
        assert "(see --max-model-len)" in error["message"], "the way out"
    assert peak_bytes(live_server.process.pid) - before < 150 * 2**20


async def test_neighbours_of_what_has_to_be_tokenized_wait_for_none(live, cpu_wait):
    """Long prompts are tokenized in full before they are truncated, one after the other."""
    body = {"prompt": LONG[:400_000], "truncate_prompt_tokens": 8, "max_tokens": 1}
    work = asyncio.gather(
        *(live.post("/generate", json=body) for _ in range(4)),
        *(live.post("/tokenize", json={"prompt": LONG[:400_000]}) for _ in range(2)),
    )
    seconds = await small(live)
    while not work.done():
        seconds = max(seconds, await small(live))
    assert seconds < 2.0 * cpu_wait.factor
    responses = await work
    assert [response.status_code for response in responses] == [202] * 4 + [200] * 2
    tokens = responses[-1].json()["tokens"]
    result = await live.get(responses[0].json()["result_url"] + "?wait=60")
    assert result.json()["usage"]["prompt_tokens"] == 8
    assert responses[-1].json()["count"] == len(tokens) > 2048
