"""Goals over HTTP: what cannot be met is refused at once, the rest is counted and explained; answers stay the same."""

import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from serving import ready_client

from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

GREEDY = {"prompt": "Once upon a time", "max_tokens": 24, "ignore_eos": True, "temperature": 0}
ROUTES = {
    "/generate": {"prompt": "hello", "stream": True},
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
}


@pytest.fixture
async def served() -> AsyncIterator[SimpleNamespace]:
    app = build_app(Settings(dtype="float32", num_threads=1, max_num_batched_tokens=64, enable_prefix_caching=False))
    async with ready_client(app) as client:
        yield SimpleNamespace(client=client, service=app.state.service)


async def answer(served: Any, **fields: Any) -> httpx.Response:
    answered: httpx.Response = await served.client.post("/v1/completions", json=GREEDY | fields)
    return answered


def slow_down(served: Any) -> None:
    """Let the cost model believe that a token takes a second."""
    model = served.service.engine.core.cost_model._hook
    model.learns, model.a, model.b, model.c = False, 1.0, 1.0, 0.0


@pytest.mark.parametrize("route", ROUTES)
async def test_what_cannot_be_met_is_refused_with_the_figure(served: Any, route: str) -> None:
    slow_down(served)
    body = {**ROUTES[route], "max_tokens": 2, "ttft_ms": 100}
    refused = await served.client.post(route, json=body)
    assert refused.status_code == 429, refused.text
    error = refused.json()["error"]
    assert error["code"] == "goal_unreachable"
    assert "ttft_ms 100 cannot be met: a first token is" in error["message"]
    assert int(refused.headers["retry-after"]) >= 1
    taken = await served.client.post(route, json={**body, "best_effort": True})
    assert taken.status_code in (200, 202), taken.text


async def test_goals_of_the_server_refuse_nothing(served: Any) -> None:
    slow_down(served)
    table = served.service.engine.core.pacer._goals
    table._server = {"ttft_ms": 1.0, "itl_ms": 1.0}
    assert (await answer(served)).status_code == 200


async def test_goals_change_no_answer_and_are_counted(served: Any) -> None:
    plain = (await answer(served)).json()["choices"][0]["text"]
    for fields in ({"ttft_ms": 60_000, "itl_ms": 60_000}, {"ttft_ms": 1, "best_effort": True}):
        assert (await answer(served, **fields)).json()["choices"][0]["text"] == plain
    stats = (await served.client.get("/stats")).json()
    assert stats["ttft_goal_hits"] == stats["itl_goal_hits"] == 1
    assert stats["ttft_goal_misses"] == 1
    assert "splitfuse:ttft_goal_misses_total" in (await served.client.get("/metrics")).text


async def test_an_explanation_says_the_slack(served: Any) -> None:
    for _ in range(2):
        await answer(served)  # the costs are known afterwards
    job = (await served.client.post("/generate", json=GREEDY | {"ttft_ms": 60_000})).json()
    await served.client.get(job["result_url"], params={"wait": 60})
    told = (await served.client.get(f"{job['result_url']}/explain")).json()
    texts = {entry["what"]: entry["why"] for entry in told["timeline"]}
    slack = re.match(r"its first token is due 60000 ms after its arrival; predicted slack: (\d+) ms", texts["goal"])
    assert slack
    assert 59_000 <= int(slack[1]) <= 60_000
    assert "ms before it was due" in texts["first token"]
