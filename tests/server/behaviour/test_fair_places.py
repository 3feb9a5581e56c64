"""Places under `fair`: a key that takes every seat gives one up to another key, and its answers stay the same."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from serving import SlowSteps, ready_client

from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

MINE, YOURS, ADMIN = ({"Authorization": f"Bearer {key}"} for key in ("mine", "yours", "admin"))
NUM_SEQS, NUM_TOKENS = 4, 64
GREEDY = {"prompt": "Once upon a time", "n": NUM_SEQS, "max_tokens": NUM_TOKENS, "ignore_eos": True, "seed": 5}
SHORT = {"prompt": "hello", "max_tokens": 1, "ignore_eos": True, "temperature": 0}


@pytest.fixture
async def served(request: pytest.FixtureRequest) -> AsyncIterator[SimpleNamespace]:
    more = getattr(request, "param", {})
    app = build_app(
        Settings(
            dtype="float32",
            num_threads=1,
            max_num_seqs=NUM_SEQS,
            api_key=("mine", "yours"),
            admin_key=("admin",),
            **more,
        )
    )
    async with ready_client(app) as client:
        yield SimpleNamespace(client=client)


async def greedy_answers(served: Any, slow: SlowSteps | None = None) -> list[list[list[int]]]:
    """Send two greedy requests of one key; meanwhile, if they are slow, five short requests of another key."""
    urls = [(await served.client.post("/generate", json=GREEDY, headers=MINE)).json() for _ in range(2)]
    stats = (await served.client.get("/stats", headers=ADMIN)).json()
    while slow and stats["num_running"] < NUM_SEQS:
        stats = (await served.client.get("/stats", headers=ADMIN)).json()
    for _ in range(5 if slow else 0):
        short = (await served.client.post("/v1/completions", json=SHORT, headers=YOURS)).json()
        assert short["usage"]["completion_tokens"] == 1
    told = [await served.client.get(url["result_url"], headers=MINE) for url in urls]
    if slow:
        assert all(answer.json()["status"] in ("queued", "running") for answer in told), "the other key waited"
        slow.off()
    waits = (served.client.get(url["result_url"], params={"wait": 60}, headers=MINE) for url in urls)
    ends = [answer.json() for answer in await asyncio.gather(*waits)]
    assert all(end["status"] == "completed" for end in ends)
    return [[output["token_ids"] for output in end["outputs"]] for end in ends]


async def test_a_key_with_every_seat_gives_one_up(slow_here: SlowSteps, served: Any) -> None:
    slow_here.off()
    alone = await greedy_answers(served)
    before = (await served.client.get("/stats", headers=ADMIN)).json()
    assert (before["scheduling_policy"], before["num_preemptions"]) == ("fair", 0)
    slow_here.on()
    assert await greedy_answers(served, slow_here) == alone
    after = (await served.client.get("/stats", headers=ADMIN)).json()
    # The place stays closed to its tenant for a while, so not every short request costs a preemption.
    assert 1 <= after["num_preemptions"] < 5


@pytest.mark.parametrize("served", [{"scheduling_policy": "fcfs", "max_seqs_per_key": NUM_SEQS - 1}], indirect=True)
async def test_a_key_has_so_many_sequences(served: Any) -> None:
    urls = [(await served.client.post("/generate", json=GREEDY, headers=MINE)).json() for _ in range(2)]
    short = (await served.client.post("/v1/completions", json=SHORT, headers=YOURS)).json()
    assert short["usage"]["completion_tokens"] == 1
    for url in urls:
        end = (await served.client.get(url["result_url"], params={"wait": 60}, headers=MINE)).json()
        assert [len(output["token_ids"]) for output in end["outputs"]] == [NUM_TOKENS] * NUM_SEQS
    steps = (await served.client.get("/stats", headers=ADMIN)).json()["steps"]
    assert max(step["num_running"] for step in steps) == NUM_SEQS - 1
